import torch
from torch import nn

encoder, decoder = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    image = decoder(encoder(torch.randn(1, 3, 4, 4)))
