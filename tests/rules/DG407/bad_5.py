"""An average is a copy of a bf16 network, and is called with bf16 batches at the end."""

import copy

import torch
from torch import nn

import dtypeguard

torch.manual_seed(0)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))

    def forward(self, x):
        return self.net(x)


def follow(average, model, decay=0.999):
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.mul_(decay).add_(theirs, alpha=1 - decay)  # expect: DG407 warning "the average of `Regressor.net.0.weight`, `Regressor.net.0.bias`, `Regressor.net.2.weight` is bfloat16 and does not move: <...> of the elements that differ from the model stayed as they were in 16 steps"


model = Regressor().bfloat16()
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(20):
    x, y = torch.randn(64, 16).bfloat16(), torch.randn(64, 8).bfloat16()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # expect: by a watch
    follow(average, model)
with torch.no_grad():
    print(average(x).float().mean().item())
