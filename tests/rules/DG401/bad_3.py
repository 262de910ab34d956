import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
weight_norm(model[2])
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG401 "AdamW holds 1 of 4 parameters that the model Sequential does not have, and lacks `Sequential.2.parametrizations.weight.original0`, `Sequential.2.parametrizations.weight.original1`"
