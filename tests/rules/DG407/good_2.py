import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import dtypeguard

model = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
average = AveragedModel(copy.deepcopy(model).float(), avg_fn=get_ema_avg_fn(0.999))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    average.update_parameters(model)
