import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.angle = nn.Linear(8, 1)

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):  # expect: DG211 "`with torch.autocast(<...>, enabled=False)` leaves autocast for cpu on: `self.angle(x.float())` at program.py:12, in forward runs in bfloat16"
            return self.angle(x.float())


model = nn.Sequential(nn.Linear(8, 8), Head())
with torch.autocast("cpu", dtype=torch.bfloat16):
    angles = model(torch.ones(3, 8))
# fix: switch it off for the device of the tensors, too: `torch.autocast('cpu', enabled=False)`
