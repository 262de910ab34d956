import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


model = nn.Sequential(RMSNorm(), nn.Linear(4, 4)).bfloat16()
model(torch.randn(2, 4, dtype=torch.bfloat16))
