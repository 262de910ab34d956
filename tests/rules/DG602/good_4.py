import torch
from torch import nn


def load(name):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    weights = torch.load(name)
    torch.set_default_dtype(before)
    return weights


before = torch.get_default_dtype()
try:
    model = load("weights.pt")
except FileNotFoundError:
    torch.set_default_dtype(before)
    model = nn.Linear(2, 2)
