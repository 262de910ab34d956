import torch
from torch import nn


class Mask(nn.Module):
    def forward(self, x, mask):
        return x * mask.to(x.dtype)


x, mask = torch.rand(3), torch.tensor([1.0, 0.0, 1.0])
traced = torch.jit.trace(Mask(), (x, mask))  # expect: DG802 warning "the trace holds `to` at program.py:7 as float32, and it was given bfloat16 since"
y = traced(x.bfloat16(), mask.bfloat16())
