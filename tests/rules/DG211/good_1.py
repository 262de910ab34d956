import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.angle = nn.Linear(8, 1)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.angle(x.float())


model = nn.Sequential(nn.Linear(8, 8), Head())
with torch.autocast("cpu", dtype=torch.bfloat16):
    angles = model(torch.ones(3, 8))
