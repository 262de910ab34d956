import torch
from torch import nn


class Potential(nn.Module):
    def forward(self, charges):
        grid = torch.linspace(0, 1, 3)
        return charges[:, None] * grid


def calculator():
    torch.set_default_dtype(torch.float64)  # expect: DG602 "the default dtype is float64 since this line (float32 before), and what is made from it met other dtypes: float64 met float32 at program.py:8, in forward"
    return Potential()


energy = calculator()(torch.tensor([1.0, 2.0], dtype=torch.float32))
# fix: set it back (`try: ... finally: torch.set_default_dtype(torch.float32)`), or give `dtype=` to the factories
