import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for inputs in torch.ones(2, 4, 3, dtype=torch.bfloat16):
    loss = model(inputs).float().mean() / 2
    scaler.scale(loss).backward()  # expect: DG303 "a GradScaler is enabled, but the forward ran in bfloat16"
scaler.step(optimizer)
scaler.update()
