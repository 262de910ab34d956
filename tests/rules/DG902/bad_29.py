import torch


def variance(x):
    mean, squares = x.mean(-1), x.float() * x.float()
    return squares.mean(-1) - mean.float() * mean.float()  # expect: DG902 "`squares.mean(-1) - mean.float() * mean.float()`: an error of 0.078 % comes in, 406 % goes out: -1.092 where float64 has 0.4916; it reaches a number that the program reads; rounded in float16: x.mean(-1) at program.py:5, in variance"


torch.manual_seed(0)
pressures = (torch.randn(100, 8) * 0.6 + 50).half()
print(variance(pressures).mean().item())
