import torch

x = torch.full((4, 64), 300.0, dtype=torch.float16)
energy = x.float().square()
print(energy.mean().item())
