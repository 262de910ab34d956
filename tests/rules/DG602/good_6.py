import torch
from torch import nn


def build(size):
    torch.set_default_dtype(torch.float64)
    model = nn.Linear(2, size)
    if size < 0:
        raise ValueError(size)
    torch.set_default_dtype(torch.float32)
    return model


for size in (-1, 3):
    try:
        model = build(size)
    except (ValueError, RuntimeError):
        continue
x = torch.zeros(2)
