import torch

scores = torch.randn(3, 3).bfloat16()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, -1e9)
