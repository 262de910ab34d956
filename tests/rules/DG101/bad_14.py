import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.weight  # expect: DG101 "`x * self.weight` mixes float64 and float32, 64 B"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = Scale(4).double()

    def forward(self, x):
        return self.scale(self.fc(x))


print(Net()(torch.ones(2, 4)).shape)
