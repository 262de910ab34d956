import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4, weight_decay=2e-8)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()  # expect: DG405 "weight_decay=2e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`"
