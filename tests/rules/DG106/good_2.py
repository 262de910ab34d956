import torch

counts = torch.zeros(3, dtype=torch.int64)
counts[:2] = torch.tensor([1.0, 2.0])
counts.copy_(torch.tensor([0.5, 1.5, 2.5]).round())
