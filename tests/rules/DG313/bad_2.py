import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(torch.ones(4, 3)) * 1e6
    scaler.scale(output.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()  # expect: DG313 "the scale has fallen from 16 to 0.0625: 8 of 8 steps were skipped for non-finite gradients, the last time in `Linear.weight`, `Linear.bias`"
