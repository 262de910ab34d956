"""A copy that is written to is kept, or is what a call returns."""

import torch
from torch import nn

weight = nn.Linear(4, 4).bfloat16().weight.detach()
mask = (weight.float().clamp_(min=0) > 0.1).sum()
noise = nn.init.normal_(weight.float(), std=0.02)
(copy := weight.float()).zero_()
weight.copy_(noise)
print(mask, copy.sum(), weight.float().clamp_(-1, 1).std())
