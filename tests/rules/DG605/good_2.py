import torch
from torch import nn

model = nn.Linear(8, 8, bias=False)
weight = torch.randn(8, 8)
scale = weight.abs().max() / 127
file = {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}
model.load_state_dict(file, strict=False)
with torch.no_grad():
    model.weight.mul_(file["weight_scale"])
