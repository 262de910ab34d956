import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4)).bfloat16()
model(torch.randn(6, 4).bfloat16()).sum().backward()
