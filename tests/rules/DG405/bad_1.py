import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-8)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()  # expect: DG405 "weight_decay=1e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`"
# fix: keep the parameters in float32 (autocast instead of `.half()`), or use a larger weight decay
