import torch

labels = torch.tensor([0, 1, 20, 255], dtype=torch.uint8)
known = labels > -1  # expect: DG114 "`labels > -1`: -1 becomes 255 in uint8, and 4 of 4 results are wrong"
# fix: use a number from 0 to 255, or a wider dtype: `.int()` first
