import copy

import torch
from torch import nn


class Average:
    def __init__(self, model, decay=0.99):
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for mine, other in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.lerp_(other, 1 - self.decay)

    def checked(self, x):
        self.module.bfloat16()  # expect: DG507 "`0.weight`, `0.bias` of Sequential: rounded to bfloat16 again, after a conversion back to float32 and an update, whose digits are lost"
        with torch.no_grad():
            out = self.module(x.bfloat16()).float()
        self.module.float()
        return out.mean().item()


model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
average = Average(model)
x = torch.ones(4, 8)
for epoch in range(2):
    with torch.no_grad():
        model[0].weight.mul_(0.9)
    average.update(model)
    print(average.checked(x))
# fix: convert a copy: `copy.deepcopy(self.module).to(torch.bfloat16)`; or run the model as it is under `torch.autocast`
