import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(4):
    loss = model(torch.ones(4, 3)).square().mean() / 4
    if step < 3:
        scaler.scale(loss).backward()
    else:
        loss.backward()
scaler.unscale_(optimizer)  # expect: DG308 "SGD gets gradients of `Linear.weight`, `Linear.bias` from a backward without `scaler.scale`; unscaling divides them by 65536"
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
