import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.expert(x)
        return self.out(h)  # expect: DG201 "`self.out(h)` gets bfloat16, which left an autocast region at program.py:12, in forward, and meets float32: it was refused"


Experts()(torch.randn(2, 4))
# fix: `.float()` on what leaves the region, or let the region reach this line
