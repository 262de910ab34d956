import torch
from ema_pytorch import EMA

for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 16).to(dtype), torch.randn(64, 16).to(dtype)
    optimizer, average = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        EMA(model, update_every=1, update_after_step=0, power=10),
    )
    before = model.weight.detach().clone()
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        average.update()
    print(dtype, (average.ema_model.weight - before).norm().item())
