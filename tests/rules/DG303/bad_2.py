import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu"):
    output = model(torch.ones(4, 3))
scaler.scale(output.float().square().mean()).backward()  # expect: DG303 "a GradScaler is enabled, but the forward ran in bfloat16"
scaler.step(optimizer)
scaler.update()
