import torch
from torch_ema import ExponentialMovingAverage

for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 16).to(dtype), torch.randn(64, 16).to(dtype)
    optimizer, average = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        ExponentialMovingAverage(model.parameters(), 0.9999, False),
    )
    before = model.weight.detach().clone()
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        average.update()
    print(dtype, (average.shadow_params[0] - before).norm().item())
