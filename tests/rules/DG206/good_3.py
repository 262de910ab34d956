import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
weights = scores.float().masked_fill(mask, -1e9).softmax(-1).to(scores.dtype)
