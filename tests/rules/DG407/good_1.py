import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, bias=False)
nn.init.ones_(model.weight)
average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        average[name].mul_(0.999).add_(weight.detach(), alpha=0.001)
