import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(4, 3)).mean().backward()
optimizer.step()
model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    model(torch.ones(4, 3))
model.train()
optimizer.zero_grad()
model(torch.ones(4, 3)).mean().backward()
optimizer.step()
