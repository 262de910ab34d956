import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).half()
model.append(nn.Linear(8, 2))
out = model(torch.ones(3, 8).half())  # expect: DG506 "`3.weight`, `3.bias`: float32, where the other parameters of Sequential are float16"
