"""Samples that are written one by one, in half precision: their variance is less than a rounding of a square."""

import torch

generator = torch.Generator().manual_seed(0)
history = torch.empty(200, 5, dtype=torch.half)
for step in range(200):
    history[step] = 0.9 + 0.02 * torch.rand(5, generator=generator)
variance = (history**2).mean(0) - history.mean(0) ** 2  # expect: DG901 "`(history**2).mean(0) - history.mean(0) ** 2`: 4 of 5 values become zero in float16, where float32 has 3.082e-05; it reaches a number that the program reads"
print(variance[0].item())
# fix: write `torch.var(history, 0, correction=0)`, which is finite and keeps its digits where the formula does not
