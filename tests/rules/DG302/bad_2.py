import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
mask = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 3).to(model.weight.dtype)).mean().backward()
    if step == 1:
        model.weight.data = model.weight.data * mask
    optimizer.step()  # expect: DG302 "the gradients of `Linear.weight` are float32, the parameters float64"
