import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(3))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x - self.mean)


program = torch.export.export(Net().double(), (torch.rand(2, 3, dtype=torch.float64),))
