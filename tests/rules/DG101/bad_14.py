import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()

    def forward(self, ids, features):
        return self.head(torch.cat([self.embed(ids), features], 1))  # expect: DG101 "`torch.cat([self.embed(ids), features], 1)` mixes float64 and float32, 128 B"


features = torch.from_numpy(np.linspace(0.0, 1.0, 8).reshape(4, 2))
print(Net()(torch.arange(4), features).shape)
