import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 5))

    def forward(self, x):
        if self.table.dtype is not x.dtype:
            self.table = self.table.to(x.dtype)  # expect: DG504 warning "buffer `table` of Rotary was float32 and became bfloat16 in forward: float32 is made of it at program.py:12, in forward, with the digits of bfloat16"
        return x * self.table


model = Rotary()
half = model(torch.ones(5).bfloat16())
out = model(torch.ones(5))
