import torch
from torch import nn

model = nn.Linear(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    h = model(torch.randn(2, 4))
    average = torch.lerp(h, torch.zeros(2, 4), 0.1)  # expect: DG203 "`torch.lerp(h, torch.zeros(2, 4), 0.1)` under autocast was refused: expected dtype c10::BFloat16 for `end` but got dtype float"
