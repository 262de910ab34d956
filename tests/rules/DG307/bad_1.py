import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
loss = model(torch.ones(4, 3)).square().mean()
scaler.scale(loss.detach()).backward()  # expect: DG307 "the loss is detached, so the scaler has no gradients to check"
scaler.step(optimizer)
scaler.update()
# fix: call `scaler.scale(loss).backward()` on a loss that depends on this optimizer's parameters: no `.detach()`, `.item()` or `torch.no_grad()` on its way
