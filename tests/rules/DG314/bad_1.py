import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(4):
    scaler.scale(model(torch.ones(4, 3)).square().mean() / 4).backward()
    if step == 1:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)  # expect: DG314 "a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are divided by the scale 65536 and parts that are not"
scaler.update()
# fix: call `unscale_` once, after the last micro-batch; or `step` and `update` before the next loss
