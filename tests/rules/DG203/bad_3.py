import torch
from torch import nn

model, target = nn.Linear(4, 2), torch.tensor([0, 0, 1])
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    nodes = torch.zeros(2, 2)
    nodes.index_add_(0, target, model(torch.randn(3, 4)))  # expect: DG203 "`nodes.index_add_(0, target, model(torch.randn(3, 4)))` under autocast was refused: index_add_(): self (Float) and source (Half) must have the same scalar type"
