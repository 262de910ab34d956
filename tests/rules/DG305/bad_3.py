import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=False)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(torch.ones(4, 3)).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)  # expect: DG305 "the model ran under float16 autocast, and SGD stepped with a GradScaler that is disabled"
scaler.update()
