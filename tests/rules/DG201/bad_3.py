import torch
from torch import nn

encoder, values = nn.Linear(4, 4), torch.randn(2, 4, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    keys = encoder(torch.randn(2, 3, 4))
    with torch.autocast("cpu", enabled=False):
        scores = torch.bmm(keys, values)  # expect: DG201 "`torch.bmm(keys, values)` gets bfloat16, which left an autocast region at program.py:6, in <module>, and meets float32: it was refused"
