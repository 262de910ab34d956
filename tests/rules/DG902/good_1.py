import torch

x = (torch.arange(64.0) + 100).bfloat16()
variance = x.float().var(correction=0)
print(variance.sqrt().item())
