import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[2] = nn.Linear(4, 2)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()  # expect: DG401 "SGD holds 2 of 4 parameters that the model Sequential does not have, and lacks `Sequential.2.weight`, `Sequential.2.bias`"
# fix: build the optimizer after the last change of the model (new head, PEFT, parametrization, `fully_shard`, `load_state_dict(assign=True)`), or `optimizer.add_param_group` for what is new; parameters of a loss or of a second model: `watch([model, other], ...)`
