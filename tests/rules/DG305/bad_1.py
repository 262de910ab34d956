import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for step in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
    loss.backward()
    optimizer.step()  # expect: DG305 "the model ran under float16 autocast, and SGD stepped without a GradScaler"
# fix: scale the loss: `scaler = torch.amp.GradScaler('cpu')`, `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`; or use bfloat16; for a loss scale of your own, ignore this rule
