import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
model.to(torch.float64)
model(torch.ones(8, 3, dtype=torch.float64)).square().mean().backward()
optimizer.step()
