import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
checkpoint = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
model.load_state_dict(checkpoint, assign=True)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG401 "AdamW holds 2 of 2 parameters that the model Linear does not have, and lacks `Linear.weight`, `Linear.bias`"
