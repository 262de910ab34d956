import torch
from torch import nn


def load(name, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # expect: DG602 "the default dtype is bfloat16 since this line (float32 before), and an exception left `load` before it was set back: `nn.Linear(2, 2)` at program.py:17, in <module> is bfloat16"
    model = nn.Linear(2, 2)
    model.load_state_dict(torch.load(name))
    torch.set_default_dtype(before)
    return model


try:
    model = load("weights.pt", torch.bfloat16)
except FileNotFoundError:
    model = nn.Linear(2, 2)
