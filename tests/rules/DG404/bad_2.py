import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).sum().backward()
optimizer.step()  # expect: DG404 "eps=1e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`"
