import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
output = model(torch.ones(4, 3))
scaler.scale(output.square().mean()).backward(retain_graph=True)
output.abs().mean().backward()
scaler.step(optimizer)  # expect: DG308 "SGD gets gradients of `Linear.weight`, `Linear.bias` from a backward without `scaler.scale`; unscaling divides them by 65536"
scaler.update()
# fix: `scaler.scale(loss).backward()` for every loss whose gradients this scaler unscales
