import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 2))

    def forward(self, x):
        if len(x) > len(self.table):
            self.table = torch.linspace(0, 1, len(x))  # expect: DG504 warning "buffer `table` of Positions was float16 and became float32 in forward: float32 met float16 at program.py:13, in forward"
        return x + self.table[: len(x), None]


model = Positions().half()
out = model(torch.ones(5, 4).half())
# fix: build it in the dtype that it replaces: `.to(self.table)` or `dtype=self.table.dtype`
