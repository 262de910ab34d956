import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()).eval().bfloat16()
model[1].float()
out = model(torch.ones(3, 8).bfloat16())
