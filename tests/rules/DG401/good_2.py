import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
