import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 5))

    def forward(self, x):
        return x * self.table.to(x.dtype)


model = Rotary()
half = model(torch.ones(5).bfloat16())
out = model(torch.ones(5))
