"""Positions in float32, which autocast rounds on the way into a product of matrices."""

import torch

frequencies = 1.0 / 10000 ** (torch.arange(0, 16, 2) / 16)
positions = torch.arange(2000).float()
with torch.autocast("cpu", dtype=torch.bfloat16):
    angles = positions[:, None] @ frequencies[None, :]  # expect: DG108 "`positions[:, None] @ frequencies[None, :]`: 2000 distinct integers, 635 in bfloat16: used as angles at program.py:9, in <module>"
    table = angles.cos()
# fix: compute positions and angles in float32 outside autocast: `with torch.autocast("cpu", enabled=False):` around it, and `.float()` on what is half
