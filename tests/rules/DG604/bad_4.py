"""A state dict is cast before it is saved, and the number of steps with it."""

import torch
from torch import nn

model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


train(261)
saved = optimizer.state_dict()
for state in saved["state"].values():
    state.update({key: value.bfloat16() for key, value in state.items()})
optimizer.load_state_dict(saved)  # expect: DG604 "`AdamW.load_state_dict` takes `step of parameter 0`, `step of parameter 1` in bfloat16, as saved, which counts to 256 and no further: it is 260"
train(3)
print(optimizer.state[model.bias]["step"].item())
