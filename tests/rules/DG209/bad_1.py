import torch
from torch import nn


def encoded(encoder, batches):
    with torch.autocast("cpu", dtype=torch.bfloat16):  # expect: DG209 "`with torch.autocast(\"cpu\", dtype=torch.bfloat16)` in generator `encoded` is open while the generator waits: program.py:13, in <module> runs under autocast"
        for batch in batches:
            yield encoder(batch)


encoder, head = nn.Linear(4, 4), nn.Linear(4, 2)
for x in encoded(encoder, torch.ones(3, 2, 4)):
    loss = head(x.float()).square().mean()
# fix: leave the region before `yield`: enter it anew for each item
