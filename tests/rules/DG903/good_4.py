import torch
from torch import nn

torch.manual_seed(0)
weight, lost = torch.ones(64, 64).bfloat16(), torch.zeros(64, 64).bfloat16()
for step in range(100):
    update = torch.full((64, 64), -1e-4).bfloat16().sub_(lost)
    before = weight.clone()
    weight.add_(update)
    lost.copy_(weight - before).sub_(update)
average = weight.clone()
for step in range(100):
    average.mul_(0.998).add_(weight, alpha=0.002)  # of what stays as it is
keys = torch.zeros(2, 64, 8).bfloat16()
for position in range(64):
    keys[:, position] = torch.randn(2, 8).bfloat16()
merged = 0.25 * torch.randn(64, 64).bfloat16()
merged += torch.randn(64, 8).bfloat16() @ torch.randn(8, 64).bfloat16()
scale = 1 + nn.Parameter(0.1 * torch.randn(64).bfloat16())
print(weight.sum().item(), average.sum().item(), keys.sum().item(), merged.sum().item(), scale.sum().item())
