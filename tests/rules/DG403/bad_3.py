import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
model.bfloat16()
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3).bfloat16()).square().mean().backward()
optimizer.step()  # expect: DG403 "state `sum` of `Linear.weight`, `Linear.bias` is float32, the parameters are bfloat16"
