import torch
from torch import nn

angle = nn.Linear(8, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
        alone = angle(torch.ones(3, 8))
    with torch.autocast("cuda", enabled=False):
        total = torch.ones(3, 8).cumsum(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            again = angle(torch.ones(3, 8))
with torch.autocast("cuda", enabled=False):
    outside = angle(torch.ones(3, 8))
