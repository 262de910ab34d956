import torch
from torch import nn
from torch._subclasses import FakeTensorMode

criterion = nn.BCELoss()


@torch.autocast("xpu", dtype=torch.bfloat16)
def validate(x, y, weight):
    p = (x @ weight).sigmoid()
    return criterion(p, y)  # expect: DG204 "`criterion(p, y)`: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."


with FakeTensorMode(), torch.device("xpu"):
    validate(torch.rand(3, 4), torch.ones(3, 1), torch.rand(4, 1))
