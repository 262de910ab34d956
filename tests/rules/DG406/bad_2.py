import torch
from torch import nn

import dtypeguard

model = nn.Embedding(10, 4).to(torch.bfloat16)
nn.init.constant_(model.weight, 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.arange(10)).square().mean().backward()
    optimizer.step()  # expect: DG406 "100 % of the elements of bfloat16 parameters with a non-zero gradient did not move in a step of SGD (lr=0.001): `Embedding.weight`"
