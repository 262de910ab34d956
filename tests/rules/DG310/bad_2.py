import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
scaler.unscale_(optimizer)
print("norm", model.weight.grad.norm().item())
scaler.unscale_(optimizer)  # expect: DG310 "`unscale_` is called a second time on SGD (1 scaled loss since its last step, and no `update()` between)"
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
# fix: delete this call: the gradients are unscaled already; or give it the optimizer whose gradients it is meant for
