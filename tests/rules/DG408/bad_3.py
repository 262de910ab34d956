import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
x = torch.full((8, 3), 100.0).half()
loss = (model(x) - 1000).float().square().sum()
loss.backward()
optimizer.step()  # expect: DG408 "gradients of `Linear.weight` (1 of 2 parameters with a gradient) are not finite"
