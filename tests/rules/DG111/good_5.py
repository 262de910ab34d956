import torch

scores = torch.randn(2, 4, 8, 8)
mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
weights = (scores + mask).softmax(-1)
segments = torch.tensor([0.0, 1.0]).repeat(8, 4)
hidden = torch.randn(2, 8, 8) + segments
likely = (hidden @ torch.randn(8, 5)).softmax(-1)
