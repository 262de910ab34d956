import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.unscale_(optimizer)  # expect: DG311 "`scaler.unscale_` is called on SGD again, and `scaler.update()` was not called since its last step"
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
