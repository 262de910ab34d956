import torch

scores = torch.full((2, 3), -torch.inf)
scores[0] = 1.0
weights = torch.softmax(scores, dim=-1)  # expect: DG901 "`torch.softmax(scores, dim=-1)`: 3 of 6 values become infinite or NaN in float32; it reaches a number that the program reads"
print(weights.sum().item())
