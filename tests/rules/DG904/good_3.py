import torch

x = torch.linspace(-3, 3, 1000).bfloat16()
print((x * 1.1 > 0.5).sum().item(), (x * 20).round().to(torch.int8).sum().item())
