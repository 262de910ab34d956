import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    output = model(torch.ones(4, 3))
first, second = scaler.scale([output.float().mean(), output.amax()])  # expect: DG306 "the loss given to `scaler.scale` is float16"
(first + second).backward()
scaler.step(optimizer)
scaler.update()
