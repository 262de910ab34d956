import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4)

    def forward(self, x):
        self.table.type(torch.float32)  # expect: DG103 "`self.table.type(torch.float32)` gives a new float32 tensor, and it is thrown away: `self.table` stays int64"
        return x * self.table


Net()(torch.ones(4))
