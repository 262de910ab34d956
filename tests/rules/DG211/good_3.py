import torch
from torch import nn

layer = nn.Linear(8, 1).bfloat16()
with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cuda", enabled=False):
    half = layer(torch.ones(3, 8, dtype=torch.bfloat16))
