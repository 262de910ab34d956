import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
body = torch.optim.Adam(model[0].parameters(), lr=1e-3)
head = torch.optim.SGD(model[2].parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, [body, head])
for _ in range(4):
    model.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    body.step()
    head.step()
