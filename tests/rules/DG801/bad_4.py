import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x.double().cumsum(-1).float())  # expect: DG801 info "`to`, `cumsum` of the exported graph are float64, the parameters are float32: `to` casts to float64 (exported at program.py:14, in <module>)"


program = torch.export.export(Net(), (torch.rand(2, 3),))
