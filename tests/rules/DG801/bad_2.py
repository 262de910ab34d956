import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        table = torch.linspace(0, 1, 3, dtype=torch.float64)
        return self.head((x * table).float())  # expect: DG801 "`linspace`, `mul` of the exported graph are float64, the parameters are float32: `linspace` makes float64 (exported at program.py:15, in <module>)"


program = torch.export.export(Net(), (torch.rand(2, 3),))
