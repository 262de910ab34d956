import torch

x = torch.linspace(-2, 2, 9)
outside = (x < -1) + (x > -0.5)  # a logical or
outside += x == 0
print(outside.sum().item(), outside.float().mean().item(), x[outside].tolist())
