import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
model[1].float()
for _ in range(3):
    model(torch.randn(6, 4).bfloat16()).sum().backward()
