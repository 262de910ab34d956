import contextlib

import torch
from torch import nn


def samples(model):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))  # expect: DG209 "`stack.enter_context(torch.autocast(\"cpu\", dtype=torch.bfloat16))` in generator `samples` is open while the generator waits: program.py:16, in <module> runs under autocast"
        for step in range(2):
            yield model(torch.ones(2, 4)).float()


model = nn.Linear(4, 4)
for x in samples(model):
    score = x @ torch.ones(4, 1)
