import torch
from pytorch_optimizer import Adai

for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(dtype)
    optimizer, x = Adai(model.parameters()), torch.randn(64, 16).to(dtype)
    for _ in range(100):
        optimizer.zero_grad()
        loss = (model(x) - x[:, :4]).float().square().mean()
        loss.backward()
        optimizer.step()
    print(dtype, loss.item())
