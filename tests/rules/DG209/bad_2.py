import torch
from torch import nn


def batches(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):  # expect: DG209 "`with torch.autocast(\"cpu\", dtype=torch.bfloat16)` in generator `batches` is open while the generator waits: program.py:13, in <module> runs under autocast"
        yield model(torch.ones(2, 4))


model, other = nn.Linear(4, 4), nn.Linear(4, 4)
waiting = batches(model)
first = next(waiting)
out = other(torch.ones(2, 4))
waiting.close()
