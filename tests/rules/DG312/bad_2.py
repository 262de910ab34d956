import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()  # expect: DG312 "SGD.step() was called directly after `unscale_`, past the scaler's check for inf and NaN"
scaler.update()
