import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).bfloat16()
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3).bfloat16()).square().mean().backward()
optimizer.step()
