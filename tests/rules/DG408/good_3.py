import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for x in (torch.ones(4, 3), torch.full((4, 3), float("nan")), torch.ones(4, 3)):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    if loss.isfinite():
        loss.backward()
        optimizer.step()
