import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
x = torch.ones(4, 3)
target = model(x).detach()
for _ in range(3):
    optimizer.zero_grad()
    (model(x) - target).square().sum().sqrt().backward()
    optimizer.step()  # expect: DG408 "gradients of `Linear.weight`, `Linear.bias` (2 of 2 parameters with a gradient) are not finite"
# fix: mend the line that DG901 names in an audit with `values="range"`; under float16 autocast a GradScaler skips such steps
