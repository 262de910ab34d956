import torch

image = torch.full((3, 4, 4), 200, dtype=torch.uint8)
weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.int32)  # expect: DG106 "`torch.tensor([0.299, 0.587, 0.114], dtype=torch.int32)` writes numbers into int32: 3 of 3 lose their fraction, and become 0"
print((weights[:, None, None] * image).sum(0))
