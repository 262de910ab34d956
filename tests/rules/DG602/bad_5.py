import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # expect: DG602 "the default dtype is float64 since this line (float32 before), and an exception left `default_dtype` before it was set back: `torch.rand(3)` at program.py:18, in <module> is float64"
    yield
    torch.set_default_dtype(before)


with contextlib.suppress(RuntimeError):
    with default_dtype(torch.float64):
        table = nn.Linear(2, 2)(torch.ones(1, 3))
noise = torch.rand(3)
