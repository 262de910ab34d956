import torch
from torch import nn


def selective_scan(u, delta):
    if u.dtype is not torch.bfloat16:
        raise TypeError(f"selective_scan expects bfloat16, got {u.dtype}")
    return u * delta


norm = nn.LayerNorm(4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    hidden = norm(torch.randn(2, 4))
    y = selective_scan(hidden, hidden)  # expect: DG205 "`selective_scan(hidden, hidden)` under autocast got `u` in float32: selective_scan expects bfloat16, got torch.float32"
