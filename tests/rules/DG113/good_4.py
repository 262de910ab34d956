import torch

x = torch.tensor([1.0, 2.0]).half()
y = x / (x.sum() + 1e-8)
