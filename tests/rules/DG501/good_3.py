import torch
from torch import nn

model = nn.Embedding(4, 2)
model.register_buffer("positions", torch.arange(4))
model.half()
out = model(model.positions)
