import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
        self.register_buffer("mean", mean.float())
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x - self.mean)


program = torch.export.export(Net(), (torch.rand(2, 3),))
