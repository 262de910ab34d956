import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
groups = [{"params": model[0].parameters(), "eps": 1e-4}, {"params": model[1].parameters(), "lr": 1e-4}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).sum().backward()
optimizer.step()  # expect: DG404 "eps=1e-08 is 0 in float16, the dtype of `Sequential.1.weight`, `Sequential.1.bias`"
