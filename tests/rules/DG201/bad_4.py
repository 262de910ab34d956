import torch
from torch import nn

encoder, decoder = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    latent = encoder(torch.randn(1, 3, 4, 4))
decoder(latent)  # expect: DG201 "`decoder(latent)` gets bfloat16, which left an autocast region at program.py:6, in <module>, and meets float32: it was refused"
