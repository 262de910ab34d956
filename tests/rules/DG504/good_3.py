import torch
from torch import nn


class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.steps = self.steps + 1
        return x - self.mean


model = Center()
out = model(torch.ones(5, 4))
