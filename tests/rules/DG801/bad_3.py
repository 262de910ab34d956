import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x.float()) + x  # expect: DG801 "`add` of the exported graph is float64, the parameters are float32: input `x` is float64 (exported at program.py:14, in <module>)"


program = torch.export.export(Net(), (torch.rand(2, 3, dtype=torch.float64),))
