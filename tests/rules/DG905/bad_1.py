import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, n):
        return torch.arange(n, dtype=self.scale.dtype) * self.scale  # expect: DG905 "`torch.arange(n, dtype=self.scale.dtype)`: 3328 of 4096 whole numbers become others in bfloat16, 4096 different ones become 769: 2048 where float32 has 2056; it reaches the output of Positions"


Positions().bfloat16()(4096)
# fix: keep positions, counts and ids in integers, or in float32
