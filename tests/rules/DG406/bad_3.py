import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
nn.init.ones_(model[0].weight)
nn.init.ones_(model[0].bias)
groups = [{"params": model[0].parameters(), "lr": 1e-5}, {"params": model[1].parameters(), "lr": 1e-2}]
optimizer = torch.optim.Adam(groups, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8).half()).square().mean().backward()
    optimizer.step()  # expect: DG406 "100 % of the elements of float16 parameters with a non-zero gradient did not move in a step of Adam (lr=1e-05): `Sequential.0.weight`, `Sequential.0.bias`"
