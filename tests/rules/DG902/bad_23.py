"""A phase loses its digits in the sum, and not where the pitch is made, whose errors average out."""

import torch

pitch = 440 * 2 ** (torch.sin(torch.arange(1_000_000) / 700) / 12)
phase = torch.cumsum(pitch / 24000, 0)
wave = torch.sin(phase * 6000)  # expect: DG902 "`torch.sin(phase * 6000)`: an error of 1.6e-05 % comes in, 283 % goes out: -1 where float64 has 1; it reaches a number that the program reads; rounded in float32: torch.cumsum(pitch / 24000, 0) at program.py:6, in <module>"
print(wave[-1].item())
# fix: compute `torch.sin(phase * 6000)` and what it is computed from, beginning with `torch.cumsum(pitch / 24000, 0)` at line 6, in float64
