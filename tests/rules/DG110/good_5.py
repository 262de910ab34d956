import torch

scores = torch.randn(2, 3)
padding = torch.tensor([[0, 0, 1], [0, 1, 1]])
scores = scores.masked_fill(padding.bool(), float("-inf"))
