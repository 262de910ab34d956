import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).half()
images = torch.rand(3, 4)
model(images.to(torch.float16))
