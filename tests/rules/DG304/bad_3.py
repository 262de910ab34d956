import torch
from torch import nn

import dtypeguard

teacher, model = nn.Linear(3, 1), nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    target = teacher(torch.ones(4, 3)).float()
loss = nn.functional.mse_loss(model(torch.ones(4, 3)), target)
scaler.scale(loss).backward()  # expect: DG304 "a GradScaler is enabled, but nothing between the parameters and the loss is in float16"
scaler.step(optimizer)
scaler.update()
