import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
inputs = torch.ones(4, 3)
inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
for step in range(20):
    optimizer.zero_grad()
    scaler.scale(model(inputs).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
