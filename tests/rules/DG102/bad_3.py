import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)  # expect: DG102 "`self.weight * h.to(x.dtype)` mixes bfloat16 and float32: the result is float32, 32 B"


model = nn.Sequential(Norm(), nn.Linear(4, 4).bfloat16())
model(torch.randn(2, 4, dtype=torch.bfloat16))
