import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import dtypeguard

model = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
average = AveragedModel(model, avg_fn=get_ema_avg_fn(0.999))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()  # expect: by a watch
    average.update_parameters(model)  # expect: DG407 "the average of `Linear.weight` is bfloat16 and does not move: 100 % of the elements that differ from the model stayed as they were in 16 steps"
