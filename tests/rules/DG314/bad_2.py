import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
scaler.unscale_(optimizer)
penalty = 0.01 * model.weight.square().sum()
scaler.scale(penalty).backward()
scaler.step(optimizer)  # expect: DG314 "a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are divided by the scale 65536 and parts that are not"
scaler.update()
