import torch
from torch import nn

model = nn.Linear(8, 8, bias=False).bfloat16()
weight = torch.randn(8, 8)
scale = weight.abs().max() / 448
file = {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}
file["weight"] = (file["weight"].float() * file["weight_scale"]).bfloat16()
model.load_state_dict(file, strict=False)
