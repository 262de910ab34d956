import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
loss = model(torch.ones(4, 3)).square().mean()
gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
penalty = sum((gradient / scaler.get_scale()).square().sum() for gradient in gradients)
scaler.scale(loss + penalty).backward()
scaler.step(optimizer)
scaler.update()
