import torch

x = torch.tensor([1.0, 2.0]).half()
y = x / (x.float().sum() + 1e-8) + (x + 1e-8)
z = (x + 1e-4).log() + x / x.norm().clamp(min=1e-7)
