import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


def step(x, y, weight):
    with torch.autocast("xpu", dtype=torch.float16):
        logits = x @ weight
        return F.binary_cross_entropy_with_logits(logits, y)


with FakeTensorMode(), torch.device("xpu"):
    step(torch.rand(3, 4), torch.rand(3, 1), torch.rand(4, 1))
