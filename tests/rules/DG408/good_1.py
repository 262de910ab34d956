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
    (model(x) - target).square().sum().add(1e-12).sqrt().backward()
    optimizer.step()
