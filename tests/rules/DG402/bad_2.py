import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.append(nn.Linear(4, 1))
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG402 "gradients of `Sequential.2.weight`, `Sequential.2.bias` (2 of 4 trainable parameters) go to no watched optimizer"
