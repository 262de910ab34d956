import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).bfloat16()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).bfloat16()).sum().backward()
optimizer.step()
