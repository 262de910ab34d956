import torch

torch.manual_seed(1)
seconds = 1.7e9 + torch.rand(1000) * 60  # since 1970
print(seconds.std().item())  # expect: DG902 "`seconds.std()`: an error of 6e-06 % comes in, more than 1000 % goes out: 256.1 where float64 has 17.36; it reaches a number that the program reads; rounded in float32: torch.rand(1000) * 60 at program.py:4, in <module>"
