import torch

# Bools, and zeros and ones, are added to what is no score: no softmax follows at once.
hits = torch.zeros(4, 4)
hits = hits + (torch.randn(4, 4) > 0)
skip = torch.randn(4, 4) + torch.eye(4)
weights = (skip @ hits.T / 2).softmax(-1)
