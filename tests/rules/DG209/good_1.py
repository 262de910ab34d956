import torch
from torch import nn


def encoded(encoder, batches):
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = encoder(batch)
        yield out


encoder, head = nn.Linear(4, 4), nn.Linear(4, 2)
for x in encoded(encoder, torch.ones(3, 2, 4)):
    loss = head(x.float()).square().mean()
