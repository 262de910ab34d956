import torch
from torch import nn


class Standardiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("square", torch.zeros(2))

    def update(self, x):
        self.count += x.shape[0]
        self.total += x.sum(0)
        self.square += (x * x).sum(0)

    @property
    def mean(self):
        return self.total / self.count

    @property
    def std(self):
        return (self.square / self.count - self.mean**2).clamp(min=1e-6).sqrt()  # expect: DG902 "`self.square / self.count - self.mean**2`: an error of 1e-05 % comes in, more than 1000 % goes out: -1024 where float64 has 117.5; it reaches the output of Standardiser and values that the program reads; rounded in float32: x * x at program.py:15, in update"

    def forward(self, x):
        return (x - self.mean) / self.std


torch.manual_seed(0)
data, scaler = torch.randn(256, 2) * 10 + 100_000, Standardiser()
for batch in data.split(32):
    scaler.update(batch)
print(scaler(data)[0].tolist())
