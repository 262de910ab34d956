import torch

torch.manual_seed(0)
scores, mask = torch.randn(4, 4).half(), torch.zeros(4, 4).half()
mask[0] = float("-inf")
hidden = scores + mask
weights = hidden.softmax(-1)  # expect: DG901 info "`hidden.softmax(-1)`: 4 of 16 values become infinite or NaN in float16"
print(weights.nan_to_num().sum().item())
