import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    loss = model(torch.ones(4, 3, dtype=torch.float16)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # expect: DG301 "`Linear.weight`, `Linear.bias` (2 of 2 trainable parameters) are float16, and a GradScaler refuses float16 gradients"
    scaler.update()
    optimizer.zero_grad()
# fix: keep the parameters in float32 (`model.float()` before the optimizer is built) and run the forward under `torch.autocast('cpu', dtype=torch.float16)`
