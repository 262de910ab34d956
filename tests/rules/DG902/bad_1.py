import torch

x = (torch.arange(64.0) / 64 + 100).bfloat16()
mean = x.mean()
variance = (x * x).mean() - mean * mean  # expect: DG902 "`(x * x).mean() - mean * mean`: an error of 0.39 % comes in, 100 % goes out: 0 where float32 has 0.08398; it reaches a number that the program reads; rounded in bfloat16: mean * mean at program.py:5, in <module>"
print(variance.sqrt().item())
# fix: compute `(x * x).mean() - mean * mean` and what it is computed from in float32
