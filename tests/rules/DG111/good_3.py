import torch

scores = torch.randn(1, 3, 3)
mask = torch.tensor([[[1, 1, 0]]])
weights = (scores + (1 - mask) * -1e9).softmax(-1)
