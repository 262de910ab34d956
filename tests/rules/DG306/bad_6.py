import torch
from torch import nn

import dtypeguard

model = nn.ModuleDict({"critic": nn.Linear(3, 1)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = -model.critic(torch.ones(4, 3)).mean()
    scaler.scale(loss).backward()  # expect: DG306 "the loss given to `scaler.scale` is float16"
    scaler.step(optimizer)
    scaler.update()
# fix: compute the loss in float32: `.float()` on the model's output in `-model.critic(torch.ones(4, 3)).mean()`
