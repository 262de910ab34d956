import torch

scores = torch.randn(4, 4)
mask = torch.ones(4, 4, dtype=torch.bool).tril()
weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
print(weights.sum().item())
