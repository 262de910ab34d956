import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for inputs in torch.linspace(-1, 1, 36).view(3, 4, 3):
    optimizer.zero_grad()
    scaler.scale((model(inputs) - 3).square().mean()).backward()
    norm = model.weight.grad.norm()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: DG309 "gradients of `Linear.weight`, `Linear.bias` were clipped to norm 1 while still multiplied by the scale 65536: after unscaling the bound is 1.53e-05"
    scaler.step(optimizer)  # expect: by a watch
    scaler.update()
# fix: `scaler.unscale_(optimizer)` before the gradients are clipped
