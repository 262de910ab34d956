import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.order = torch.tensor([3, 2, 1, 0])

    def forward(self, x):
        return self.fc(x)[:, self.order]


model = Net().half().to("cpu")
out = model(torch.ones(2, 4).half())
