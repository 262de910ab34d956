import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, dtype=torch.bfloat16)
masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=1e-5)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    model.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    for parameter, master in zip(model.parameters(), masters):
        master.grad = parameter.grad.float()
    optimizer.step()
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters):
            parameter.copy_(master)
