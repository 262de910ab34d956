import torch
from torch import nn

import dtypeguard

body, head = nn.Linear(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(body, optimizer, scaler)
features = body(torch.ones(4, 3)).detach()
scaler.scale(head(features).square().mean()).backward()
scaler.step(optimizer)  # expect: DG307 "no parameter of SGD has a gradient, so the scaler has no gradients to check"
scaler.update()
