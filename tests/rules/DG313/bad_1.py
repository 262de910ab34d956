import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
inputs = torch.ones(4, 3)
inputs = (inputs - inputs.mean(0)) / inputs.std(0)
for step in range(20):
    optimizer.zero_grad()
    scaler.scale(model(inputs).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()  # expect: DG313 "the scale has fallen from 65536 to 0.5: 17 of 17 steps were skipped for non-finite gradients, the last time in `Linear.weight`, `Linear.bias`"
# fix: look for NaN in the data and for overflow in the forward (a mask fill, an unclamped `exp`); a scale below 1 cannot help, and models pretrained in bfloat16 often cannot run in float16
