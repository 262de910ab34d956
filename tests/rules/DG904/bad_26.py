import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
x = torch.randn(256, 8) + 100
model = model.to(torch.bfloat16)
scores = model(x.to(torch.bfloat16)).reshape(8, 32)
best = scores.argmax(1)  # expect: DG904 "`scores.argmax(1)`: 3 of 8 come out otherwise than in float32: 1 instead of 17; rounded in bfloat16: model.to(torch.bfloat16) at program.py:7, in <module>"
print(best.tolist())
# fix: stay in float32: `model.to(torch.bfloat16)` rounds
