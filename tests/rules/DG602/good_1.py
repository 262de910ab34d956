import torch
from torch import nn


class Potential(nn.Module):
    def forward(self, charges):
        grid = torch.linspace(0, 1, 3)
        return charges[:, None] * grid


def calculator():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        table = torch.eye(3).inverse()
    finally:
        torch.set_default_dtype(before)
    return Potential()


energy = calculator()(torch.tensor([1.0, 2.0], dtype=torch.float32))
