import torch

hidden = torch.ones(3, 3).triu(1).bool()
scores = torch.full((3, 3), 5.0).half()
weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
