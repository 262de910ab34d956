import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
    scaler.scale(loss).backward()  # expect: DG303 "a GradScaler is enabled, but the forward ran in bfloat16"
    scaler.step(optimizer)
    scaler.update()
# fix: drop the scaler (`GradScaler(enabled=False)`), or run the forward under `torch.autocast('cpu', dtype=torch.float16)`; on the CPU autocast's default is bfloat16
