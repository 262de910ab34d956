import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
        self.register_buffer("mean", mean)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head((x - self.mean).float())  # expect: DG801 "`sub` of the exported graph is float64, the parameters are float32: buffer `mean` is float64 (exported at program.py:17, in <module>)"


program = torch.export.export(Net(), (torch.rand(2, 3),))
# fix: keep float64 out of the graph: convert the buffer where it is made: `.float()` on what comes from NumPy, `dtype=torch.float32` in factories
