import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    inner = model[0](torch.ones(4, 3))
loss = model[1](inner.float()).mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
