import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


def step(x, y, weight):
    with torch.autocast("xpu", dtype=torch.float16):
        p = torch.sigmoid(x @ weight)
        return F.binary_cross_entropy(p, y)  # expect: DG204 "`F.binary_cross_entropy(p, y)`: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."


with FakeTensorMode(), torch.device("xpu"):
    step(torch.rand(3, 4), torch.rand(3, 1), torch.rand(4, 1))
# fix: leave out the sigmoid and use `binary_cross_entropy_with_logits` (`nn.BCEWithLogitsLoss`)
