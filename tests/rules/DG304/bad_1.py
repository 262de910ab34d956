import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
    scaler.scale(loss).backward()  # expect: DG304 "a GradScaler is enabled, but nothing between the parameters and the loss is in float16"
    scaler.step(optimizer)
    scaler.update()
# fix: run the forward under `torch.autocast('cpu', dtype=torch.float16)`, or drop the scaler
