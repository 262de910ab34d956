import torch


def load(name):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # expect: DG602 "the default dtype is float64 since this line (float32 before), and an exception left `load` before it was set back: `torch.zeros(3)` at program.py:16, in <module> is float64"
    weights = torch.load(name)
    torch.set_default_dtype(before)
    return weights


x = torch.ones(3)
try:
    weights = load("weights.pt")
except FileNotFoundError:
    weights = torch.zeros(3)
y = x * weights
