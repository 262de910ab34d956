import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).sum().backward()
optimizer.step()
