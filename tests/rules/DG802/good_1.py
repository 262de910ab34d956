import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x = self.layer(x)
        return x + torch.ones_like(x)


traced = torch.jit.trace(Net(), torch.rand(2, 3))
y = traced.half()(torch.rand(2, 3).half())
