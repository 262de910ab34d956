import torch

has = torch.arange(48) % 3 == 0
one, place = torch.ones(48, dtype=torch.int32), torch.arange(48, dtype=torch.int32)
weights = one << place  # expect: DG109 "`one << place`: 16 of 48 results are outside of -2147483648 to 2147483647 and wrap around"
# fix: take a wider dtype: `.long()` first
mask = (has * weights).sum()
common = mask & mask  # bits are taken, and those above 31 are gone
