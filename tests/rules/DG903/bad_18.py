"""The total is in a copy of a model in bfloat16, which nothing has read before."""

import copy

import torch
from torch import nn

model = nn.Linear(16, 16).requires_grad_(False)
for one in model.parameters():
    one.fill_(1.0)
model.bfloat16()
total = copy.deepcopy(model)
first = [one.float() for one in total.parameters()]
for _ in range(1000):
    for one, new in zip(total.parameters(), model.parameters(), strict=True):
        one.add_(new, alpha=0.001)  # expect: DG903 "`one.add_(new, alpha=0.001)`: a total stands still: 1 where float32 has 2; it reaches a number that the program reads"
print([(one.float() - old).mean().item() for one, old in zip(total.parameters(), first, strict=True)])
# fix: keep the total in float32, whatever is added
