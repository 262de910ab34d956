import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG402 "gradients of `Sequential.0.weight`, `Sequential.0.bias` (2 of 4 trainable parameters) go to no watched optimizer"
# fix: add them (`optimizer.add_param_group`), freeze them (`requires_grad_(False)`), or, if another optimizer has them, give that to `watch` or to the trainer too
