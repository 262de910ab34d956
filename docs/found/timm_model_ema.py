import torch
from timm.utils import ModelEmaV2

for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    model, x = torch.nn.Linear(16, 16).to(dtype), torch.randn(64, 16).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = ModelEmaV2(model)
    before = model.weight.detach().clone()
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        average.update(model)
    print(dtype, (average.module.weight - before).norm().item())
