import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
losses = [model(inputs).square().mean().item() for inputs in torch.ones(2, 4, 3)]
loss = torch.tensor(losses, requires_grad=True).mean()
scaler.scale(loss).backward()
scaler.step(optimizer)  # expect: DG307 "no parameter of SGD has a gradient, so the scaler has no gradients to check"
scaler.update()
