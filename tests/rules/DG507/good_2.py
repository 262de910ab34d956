import torch
from torch import nn

decoder = nn.Linear(8, 8).requires_grad_(False)
latents = torch.ones(4, 8)
for image in range(3):
    decoder.half()  # nothing is updated in between
    rough = decoder(latents.half())
    decoder.float()
    print(rough.float().mean().item(), decoder(latents).mean().item())
