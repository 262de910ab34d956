import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3)).square().mean()
    loss = loss.to(torch.float16)
    scaler.scale(loss).backward()  # expect: DG306 "the loss given to `scaler.scale` is float16"
    scaler.step(optimizer)
    scaler.update()
# fix: compute the loss in float32: leave out the cast of `loss.to(torch.float16)`
