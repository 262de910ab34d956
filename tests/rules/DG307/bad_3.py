import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)  # expect: DG307 "no parameter of SGD has a gradient, so the scaler has no gradients to check"
    scaler.update()
