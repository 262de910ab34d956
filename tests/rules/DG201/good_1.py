import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.expert(x)
        return self.out(h.float())


Experts()(torch.randn(2, 4))
