import torch
from torch import nn


class Scatter(nn.Module):
    def __init__(self):
        super().__init__()
        self.pfn = nn.Linear(3, 2)

    def forward(self, pillars, index):
        values = self.pfn(pillars)
        canvas = values.new_zeros(6, 2)
        canvas[index] = values
        return canvas


with torch.autocast("cpu", dtype=torch.bfloat16):
    Scatter()(torch.randn(3, 3), torch.tensor([0, 2, 5]))
