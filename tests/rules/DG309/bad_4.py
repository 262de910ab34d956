"""The first gradient that is clipped is of a parameter that no optimizer holds."""

import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 1))
model.register_parameter("gain", nn.Parameter(torch.ones(())))
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for inputs in torch.linspace(-1, 1, 36).view(3, 4, 3):
    optimizer.zero_grad()
    scaler.scale((model(inputs) * model.gain - 3).square().mean()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: DG309 "gradients of `Sequential.0.weight`, `Sequential.0.bias` were clipped to norm 1 while still multiplied by the scale 65536: after unscaling the bound is 1.53e-05"
    scaler.step(optimizer)  # expect: by a watch
    scaler.update()
