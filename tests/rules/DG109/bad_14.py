import torch

state = torch.tensor([42, 2024, 777], dtype=torch.int32)
for _ in range(8):
    state = (state * 16807) % (2**31 - 1)  # expect: DG109 "`state * 16807`: 3 of 3 results are outside of -2147483648 to 2147483647 and wrap around"
# fix: take a wider dtype: `.long()` first
