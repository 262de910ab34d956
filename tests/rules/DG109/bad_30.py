import torch

x = torch.randint(1, 20, (4, 300))
x[:, 290:] = 0  # padding
lengths = (x != 0).sum(1, dtype=torch.uint8)  # expect: DG109 "`(x != 0).sum(1, dtype=torch.uint8)`: 4 of 4 results are outside of 0 to 255 and wrap around"
last = x[torch.arange(4), lengths.long() - 1]
# fix: leave out `dtype=`: `sum` of integers is int64
