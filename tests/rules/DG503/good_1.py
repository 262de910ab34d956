import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.0, 4), persistent=False)

    def forward(self, x):
        return self.fc(x) * self.scale


model = Net().to(torch.bfloat16)
out = model(torch.ones(2, 4).bfloat16())
