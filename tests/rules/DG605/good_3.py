import torch
from torch import nn

model = nn.ModuleDict({"head": nn.Linear(4, 4, bias=False)})
file = {"head.weight": torch.randn(4, 4, dtype=torch.bfloat16), "head.weight_scale": torch.ones(())}
model.load_state_dict(file, strict=False)
