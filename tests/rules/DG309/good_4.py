import torch
from torch import nn

import dtypeguard

model, critic = nn.Linear(3, 2), nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
later = torch.optim.SGD(critic.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
watched = dtypeguard.amp.watch([model, critic], [optimizer, later], scaler)
scaler.scale(critic(torch.ones(4, 2)).square().mean()).backward()
for step in range(6):
    optimizer.zero_grad()
    x = torch.full((4, 3), 1.0 + step)
    scaler.scale((model(x) - 9.0).square().mean()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
