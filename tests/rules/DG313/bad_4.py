import torch
from torch import nn

import dtypeguard

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(24):
    if step == 4:
        model.weight.data[0, 0] = float("nan")
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()  # expect: DG313 "the scale has fallen from 65536 to 0.5: 17 of 21 steps were skipped for non-finite gradients, the last time in `Linear.weight`, `Linear.bias`; `Linear.weight` holds NaN or infinity itself"
# fix: go back to a checkpoint in which `Linear.weight` is finite, and look for what has written to it: no step brings it back
