import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for inputs in torch.ones(2, 4, 3):
    scaler.scale(model(inputs).square().mean() / 2).backward()
    scaler.unscale_(optimizer)  # expect: DG310 "`unscale_` is called a second time on SGD (2 scaled losses since its last step, and no `update()` between)"
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
# fix: call `update` in each iteration, also in one that skips `step`; with gradient accumulation call `unscale_`, clip, `step` and `update` once, after the last micro-batch
