import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
optimizer.step()  # expect: DG312 "SGD.step() was called directly on gradients that are still multiplied by the scale 65536"
scaler.update()
# fix: `scaler.step(optimizer)` in place of `optimizer.step()`
