import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale((model(torch.ones(4, 3)) - 3).square().mean()).backward()
for parameter in model.parameters():
    parameter.grad.clamp_(-1, 1)  # expect: DG309 "gradients of `Linear.weight`, `Linear.bias` were clipped to values between -1 and 1 while still multiplied by the scale 1024: after unscaling the bound is 0.000977"
scaler.step(optimizer)  # expect: by a watch
scaler.update()
