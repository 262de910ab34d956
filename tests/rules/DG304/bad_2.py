import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16, enabled=False):
    output = model(torch.ones(4, 3))
scaler.scale(output.square().mean()).backward()  # expect: DG304 "a GradScaler is enabled, but nothing between the parameters and the loss is in float16"
scaler.step(optimizer)
scaler.update()
