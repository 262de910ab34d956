import torch
from torch import nn

model = nn.Linear(3, 2).to("meta")
batch = torch.rand(8, 3)
model(batch.to("meta"))
