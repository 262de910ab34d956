import torch
from torch import nn

angle = nn.Linear(8, 1)


@torch.autocast("cuda", enabled=False)
def precise(x):
    return angle(x.float())


with torch.autocast("cpu", dtype=torch.bfloat16):
    angles = precise(torch.ones(3, 8))  # expect: DG211 "`angles = precise(torch.ones(3, 8))` leaves autocast for cpu on: `angle(x.float())` at program.py:9, in precise runs in bfloat16"
# fix: switch it off for the device of the tensors, too: `torch.autocast('cpu', enabled=False)`
