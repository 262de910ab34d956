import torch

a = torch.randn(64, 64)
one, other = (a @ a).bfloat16(), (a.double() @ a.double()).bfloat16()
print((one - other).abs().max().item())
