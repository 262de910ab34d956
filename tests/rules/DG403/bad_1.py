import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
model.half()
optimizer.zero_grad()
model(torch.ones(8, 3).half()).square().mean().backward()
optimizer.step()  # expect: DG403 "state `exp_avg`, `exp_avg_sq` of `Linear.weight`, `Linear.bias` is float32, the parameters are float16"
# fix: convert or move the model before the optimizer is built; after a change build it anew, or `optimizer.load_state_dict(optimizer.state_dict())` to cast its state
