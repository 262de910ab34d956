import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
model.eval()
out = model(torch.randn(6, 4).bfloat16())
