import numpy as np
import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        angles = np.arange(16)[:, None] / 10000 ** (np.arange(8) / 8)
        self.table = torch.from_numpy(np.sin(angles))

    def forward(self, x):
        return x + self.table[: x.shape[1]]  # expect: DG101 "`x + self.table[: x.shape[1]]` mixes float64 and float32, 640 B"


y = Encoding()(torch.randn(2, 5, 8))
