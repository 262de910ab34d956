import torch

# NaN of the data is the largest value in each dtype: the choice is the same.
scores = torch.tensor([1.0, float("nan"), 2.0, 3.0]).bfloat16() * 1.5
place = scores.argmax()
best = scores.topk(2).indices

# Nothing is nearly infinite.
weights = torch.randn(4).softmax(0) * 3.0
spoilt = (weights == float("inf")).any()
largest = weights.masked_fill(weights > 1, float("-inf"))
found = largest.max() == largest
