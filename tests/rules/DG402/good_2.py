import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.append(nn.Linear(4, 1))
optimizer.add_param_group({"params": model[2].parameters()})
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
