import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-8)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).bfloat16()).mean().backward()
optimizer.step()
