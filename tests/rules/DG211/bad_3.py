import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.precise = torch.autocast("cuda", enabled=False)

    def forward(self, x):
        with self.precise:  # expect: DG211 "`with self.precise` leaves autocast for cpu on: `self.project(x.float())` at program.py:13, in forward runs in bfloat16"
            return self.project(x.float()).square().mean()


model = Norm()
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        size = model(torch.ones(3, 8))
# fix: switch it off for the device of the tensors, too: `torch.autocast('cpu', enabled=False)`
