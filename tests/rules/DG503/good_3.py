import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        scale = torch.linspace(0.5, 1.0, 4, dtype=x.dtype, device=x.device)
        return self.fc(x) * scale


model = Net()
model.bfloat16()
out = model(torch.ones(2, 4).bfloat16())
