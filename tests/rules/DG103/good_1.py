import torch

x = torch.ones(3, dtype=torch.float64)
x = x.float()
