import torch
from torch import nn

encoder, values = nn.Linear(4, 4), torch.randn(2, 4, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    keys = encoder(torch.randn(2, 3, 4))
    with torch.autocast("cpu", enabled=False):
        scores = torch.bmm(keys.float(), values)
