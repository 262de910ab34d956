import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
groups = [{"params": model[0].parameters(), "weight_decay": 1e-9}, {"params": model[1].parameters()}]
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()  # expect: DG405 "weight_decay=1e-09 is 0 in float16, the dtype of `Sequential.0.weight`, `Sequential.0.bias`"
