import torch
from torch import nn

import dtypeguard

head = nn.Linear(4, 1)
head = head.half()
optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
watched = dtypeguard.amp.watch(head, optimizer)
head(torch.ones(8, 4).half()).sum().backward()
optimizer.step()  # expect: DG404 "eps=1e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`"
