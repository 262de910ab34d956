import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 2))

    def forward(self, x):
        if len(x) > len(self.table):
            self.table = torch.linspace(0, 1, len(x)).to(self.table)
        return x + self.table[: len(x), None]


model = Positions().half()
out = model(torch.ones(5, 4).half())
