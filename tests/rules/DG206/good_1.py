import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
