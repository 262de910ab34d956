import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
loss = model(torch.ones(4, 3, dtype=torch.float16)).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
