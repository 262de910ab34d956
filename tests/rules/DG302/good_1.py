import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for parameter in model.parameters():
    parameter.data = parameter.data.to(torch.bfloat16)
model(torch.ones(4, 3, dtype=torch.bfloat16)).float().mean().backward()
optimizer.step()
