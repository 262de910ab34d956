import torch
from torch import nn

model, x, y = nn.Linear(4, 1), torch.randn(3, 4), torch.rand(3, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    p = torch.sigmoid(model(x))
    with torch.autocast("cpu", enabled=False):
        loss = nn.BCELoss()(p.float(), y)
loss.backward()
