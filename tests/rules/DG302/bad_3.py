import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(4, 3)).mean().backward()
for parameter in model.parameters():
    parameter.grad.data = parameter.grad.data.to(torch.bfloat16)
optimizer.step()  # expect: DG302 "the gradients of `Linear.weight`, `Linear.bias` are bfloat16, the parameters float32"
