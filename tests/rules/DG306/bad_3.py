import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2).bfloat16())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
logits = model[1](model[0](torch.ones(4, 3)).bfloat16())
loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 0, 1]))
scaler.scale(loss).backward()  # expect: DG306 "the loss given to `scaler.scale` is bfloat16"
scaler.step(optimizer)
scaler.update()
