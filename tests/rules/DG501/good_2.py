import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
model[0].bfloat16()
out = model(torch.ones(3, 4).bfloat16())
