import torch
from torch import nn

import dtypeguard

torch.save(nn.Linear(3, 1).half().state_dict(), "model.pt")
with torch.device("meta"):
    model = nn.Linear(3, 1)
model.load_state_dict(torch.load("model.pt"), assign=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(torch.ones(4, 3)).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)  # expect: DG301 "`Linear.weight`, `Linear.bias` (2 of 2 trainable parameters) are float16, and a GradScaler refuses float16 gradients"
scaler.update()
