import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
tokens = [317, 512, 401]
for count in tokens:
    optimizer.zero_grad()
    scaler.scale((model(torch.ones(4, 3)) - 3).square().sum()).backward()
    for parameter in model.parameters():
        parameter.grad.div_(count)
    scaler.step(optimizer)
    scaler.update()
