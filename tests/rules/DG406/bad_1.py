import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()  # expect: DG406 "100 % of the elements of bfloat16 parameters with a non-zero gradient did not move in a step of AdamW (lr=1e-05): `Linear.weight`, `Linear.bias`"
# fix: keep float32 parameters and use autocast, or an optimizer with float32 master weights or stochastic rounding
