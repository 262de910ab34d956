import torch

torch.manual_seed(0)
total = -2.8e7 + torch.rand(900, dtype=torch.float64)
atoms = -2.8e7
labels = total.float() - atoms  # expect: DG902 "`total.float() - atoms`: an error of 6e-06 % comes in, 172 % goes out: 0 where float64 has 0.9989; it reaches a number that the program reads; rounded in float32: total.float() at program.py:6, in <module>"
print(labels.mean().item(), (total - atoms).mean().item())
