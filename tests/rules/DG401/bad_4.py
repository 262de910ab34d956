import copy

import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model = copy.deepcopy(model)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG401 "SGD holds 2 of 2 parameters that the model Linear does not have, and lacks `Linear.weight`, `Linear.bias`"
