import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4, momentum=0.01)

    def forward(self, x):
        return self.norm(self.conv(x))  # expect: DG502 "`running_mean` of Net.norm is float16, and training updates it by 0.01 of the difference"


model = Net().half()
out = model(torch.randn(2, 3, 4, 4).half())
