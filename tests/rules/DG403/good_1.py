import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
model.half()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
model(torch.ones(8, 3).half()).square().mean().backward()
optimizer.step()
