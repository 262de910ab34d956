import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.dim = dim

    def forward(self, positions):
        inv_freq = 1.0 / 10000 ** (torch.arange(0, self.dim, 2, device=positions.device).float() / self.dim)
        return torch.outer(positions.float(), inv_freq).cos()


rotary = Rotary()
rotary.to(torch.bfloat16)
cos = rotary(torch.arange(600)).bfloat16()
