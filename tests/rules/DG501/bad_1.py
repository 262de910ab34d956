import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, positions):
        return torch.outer(positions.to(self.inv_freq.dtype), self.inv_freq).cos()


rotary = Rotary()
rotary.to(torch.bfloat16)  # expect: DG501 warning "buffer `inv_freq` of Rotary: converted from float32 to bfloat16: angles up to 600 have a spacing of 4 at program.py:11, in forward"
cos = rotary(torch.arange(600))
# fix: keep it in float32, and cast only what is made from it: `kept, rotary.inv_freq = rotary.inv_freq, None` before the conversion, and `rotary.inv_freq = kept` after it; or compute it in forward
