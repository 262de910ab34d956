import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, bias=False)
nn.init.ones_(model.weight)
average = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()  # expect: by a watch
    for name, weight in model.named_parameters():
        average[name] = 0.999 * average[name] + 0.001 * weight.detach().bfloat16()  # expect: DG407 "the average of `Linear.weight` is bfloat16 and does not move: 100 % of the elements that differ from the model stayed as they were in 32 steps"
