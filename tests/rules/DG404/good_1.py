import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = model(torch.full((1, 4), 1e-4)).sum()
loss.backward()
optimizer.step()
