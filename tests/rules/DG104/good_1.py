import torch
from torch import nn


class Positional(nn.Module):
    def __init__(self):
        super().__init__()
        table = torch.rand(256, 256, dtype=torch.float64)
        self.register_buffer("table", table.float())

    def forward(self, x):
        return x + self.table


model = Positional()
for _ in range(10):
    y = model(torch.ones(256, 256))
