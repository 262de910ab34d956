"""The number of pixels of all masks."""

import torch

area = torch.zeros((), dtype=torch.half)
for size in range(155, 245, 3):
    mask = torch.arange(256) < size
    area += mask.sum()  # expect: DG902 "`area += mask.sum()`: an error of 0.049 % comes in, 0.084 % goes out: 5960 where float32 has 5955; it reaches a number that the program reads"
print(area.item())
