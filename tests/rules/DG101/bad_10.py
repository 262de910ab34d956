"""Times of a long record need the digits of float64, and the code says so."""

import torch

times = torch.arange(90_000_000, 90_000_800, dtype=torch.float64) / 4e6
signal = torch.rand(800)
level = (signal * torch.cos(6.283185307179586 * 1e6 * times)).mean()  # expect: DG101 info "`signal * torch.cos(6.283185307179586 * 1e6 * times)` mixes float64 and float32, 6.2 KiB"
print(level.item())
