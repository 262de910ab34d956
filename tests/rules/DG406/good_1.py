import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(torch.ones(4, 8))
    output.float().square().mean().backward()
    optimizer.step()
