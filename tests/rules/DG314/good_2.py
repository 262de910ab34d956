import torch
from torch import nn

import dtypeguard

body, head = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.SGD(body.parameters(), lr=0.1)
second = torch.optim.SGD(head.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([body, head], [first, second], scaler)
features = body(torch.ones(4, 3))
scaler.scale(features.square().mean()).backward()
scaler.unscale_(first)
scaler.scale(head(features.detach()).square().mean()).backward()
scaler.step(first)
scaler.step(second)
scaler.update()
