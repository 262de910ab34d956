import torch

logits = torch.tensor([1.0, 200.0])
weights = logits.exp() / logits.exp().sum()  # expect: DG901 "`logits.exp()`: 1 of 2 values become infinite or NaN in float32, where float64 has 7.226e+86; it reaches values that the program reads and a result"
print(weights.tolist())
# fix: write `torch.softmax(logits.flatten(), 0).view_as(logits)`, which is finite and keeps its digits where the formula does not
