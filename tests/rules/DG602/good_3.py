import torch

x = torch.ones(3)
torch.set_default_dtype(torch.float64)
grid = torch.linspace(0, 1, 3, dtype=x.dtype)
y = x * grid
