import torch

torch.manual_seed(0)
x = torch.randn(256, 32)
x[7] += 3000.0
mean = x.mean(-1, keepdim=True)
variance = (x * x).mean(-1, keepdim=True) - mean * mean  # expect: DG902 "`(x * x).mean(-1, keepdim=True) - mean * mean`: an error of 0.0002 % comes in, 187 % goes out: -1 where float64 has 0.8704; it reaches a number that the program reads; rounded in float32: (x * x).mean(-1, keepdim=True) at program.py:7, in <module>"
print(((x - mean) / torch.sqrt(variance.clamp_min(0) + 1e-5)).abs().max().item())
