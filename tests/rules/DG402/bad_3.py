import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
model[0].requires_grad_(False)
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.SGD(trainable, lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for step in range(8):
    if step == 2:
        model[0].requires_grad_(True)
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG402 "gradients of `Sequential.0.weight`, `Sequential.0.bias` (2 of 4 trainable parameters) go to no watched optimizer"
