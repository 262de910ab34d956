import torch
from torch import nn


def steps(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(2):
            yield model(torch.ones(2, 4))


model, head = nn.Linear(4, 4), nn.Linear(4, 4)
first = list(steps(model))
out = head(torch.ones(2, 4))
with torch.autocast("cpu", dtype=torch.bfloat16):
    for x in steps(model):
        inside = head(torch.ones(2, 4))
