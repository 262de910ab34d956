import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim).float() / dim))

    def forward(self, x):
        angles = torch.arange(len(x)).float()[:, None] * self.inv_freq.float()
        return x * angles.cos().to(x.dtype)


rotary = Rotary().bfloat16()  # expect: DG501 warning "buffer `inv_freq` of Rotary: converted from float32 to bfloat16: angles up to 1999 are off by up to 0.36 at program.py:12, in forward"
total = rotary(torch.ones(2000, 8).bfloat16()).float().sum()
