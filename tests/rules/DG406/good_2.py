import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
