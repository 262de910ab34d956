import torch
from torch import nn

torch.manual_seed(0)
with torch.autocast("cpu", dtype=torch.bfloat16):
    h = nn.Linear(6, 12)(torch.randn(40, 6))
wide = h.float()
unit = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True))
exact = h.double() / h.double().norm(dim=-1, keepdim=True)  # of the same rounded values
assert (unit.double() - exact).abs().max() < 1e-5
