import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for inputs in torch.linspace(-1, 1, 24).view(2, 4, 3):
    scaler.scale((model(inputs) - 3).square().mean() / 2).backward()
nn.utils.clip_grad_value_(model.parameters(), 0.5)  # expect: DG309 "gradients of `Linear.weight`, `Linear.bias` were clipped to values between -0.5 and 0.5 while still multiplied by the scale 65536: after unscaling the bound is 7.63e-06"
scaler.unscale_(optimizer)  # expect: by a watch
scaler.step(optimizer)
scaler.update()
