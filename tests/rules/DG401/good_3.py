import torch
from torch import nn

import dtypeguard

model, temperature = nn.Linear(3, 2), nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    (model(torch.ones(8, 3)) * temperature).square().mean().backward()
    optimizer.step()
