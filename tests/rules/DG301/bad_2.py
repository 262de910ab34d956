import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1, dtype=torch.float16))
optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
scaler.scale(loss).backward()
scaler.unscale_(optimizer)  # expect: DG301 "`Sequential.1.weight`, `Sequential.1.bias` (2 of 4 trainable parameters) are float16, and a GradScaler refuses float16 gradients"
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
