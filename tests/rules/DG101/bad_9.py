import torch
from torch import nn

model = nn.Linear(4, 1)
target = torch.rand(3, 1, dtype=torch.float64)
loss = (model(torch.rand(3, 4)) - target).square().mean()  # expect: DG101 "`model(torch.rand(3, 4)) - target` mixes float64 and float32, 24 B"
loss.backward()
log = loss.detach().float()
