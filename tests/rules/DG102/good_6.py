import torch

counts = torch.tensor([3, 4, 5])
weights = torch.rand(3)
mean = (counts * weights).sum()
