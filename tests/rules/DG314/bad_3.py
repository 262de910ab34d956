import torch
from torch import nn

import dtypeguard

body, head = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.SGD(body.parameters(), lr=0.1)
second = torch.optim.SGD(head.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([body, head], [first, second], scaler)
features = body(torch.ones(4, 3))
scaler.scale(features.square().mean()).backward(retain_graph=True)
scaler.unscale_(first)
scaler.scale(head(features).square().mean()).backward()
scaler.step(first)  # expect: DG314 "a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are divided by the scale 65536 and parts that are not"
scaler.step(second)
scaler.update()
