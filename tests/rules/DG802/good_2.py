import torch
from torch import nn


class Mask(nn.Module):
    def forward(self, x, mask):
        return x * mask.type_as(x)


x, mask = torch.rand(3), torch.tensor([1.0, 0.0, 1.0])
traced = torch.jit.trace(Mask(), (x, mask))
y = traced(x.bfloat16(), mask.bfloat16())
