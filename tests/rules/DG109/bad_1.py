import torch

now = torch.tensor([3, 9], dtype=torch.uint8)
before = torch.tensor([5, 5], dtype=torch.uint8)
change = now - before  # expect: DG109 "`now - before`: 1 of 2 results are outside of 0 to 255 and wrap around"
# fix: take a wider dtype: `.int()` or `.float()` first
