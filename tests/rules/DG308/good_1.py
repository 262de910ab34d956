import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
output = model(torch.ones(4, 3))
scaler.scale(output.square().mean()).backward(retain_graph=True)
scaler.scale(output.abs().mean()).backward()
scaler.step(optimizer)
scaler.update()
