import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def amp():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


model = nn.Linear(4, 4)
with amp():
    out = model(torch.ones(2, 4))
