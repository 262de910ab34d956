import torch
import torch.nn.functional as F
from torch import nn


class Quantized(nn.Linear):
    def forward(self, x):
        scale = self.weight.detach().abs().amax() / 127
        quantized = (self.weight / scale).round().to(torch.int8) * scale
        return F.linear(x, self.weight + (quantized - self.weight).detach(), self.bias)


model = nn.Sequential(Quantized(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
