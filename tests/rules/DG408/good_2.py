import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(torch.full((8, 3), 100.0))
    loss = (output.float() - 1000).square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
