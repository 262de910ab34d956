import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.factor


batch = torch.ones(2, 3)
torch.set_default_dtype(torch.float64)  # expect: DG602 "the default dtype is float64 since this line (float32 before), and what is made from it met other dtypes: float64 met float32 at program.py:11, in forward"
out = Scale()(batch)
