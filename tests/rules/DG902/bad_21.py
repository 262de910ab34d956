import torch

torch.manual_seed(0)
points = torch.randn(30, 1, 16) * 0.3 + 4 + torch.randn(30, 2, 16) * 0.02
one, other = points.unbind(1)
with torch.autocast("cpu", torch.bfloat16):
    distances = (one * one).sum(1)[:, None] + (other * other).sum(1) - 2 * one @ other.T
    print(distances.min().item())  # expect: DG902 "`distances.min()`: an error of 0.26 % comes in, 251 % goes out: -2.459 where float64 has 0.005811; it reaches a number that the program reads; rounded in bfloat16: 2 * one @ other.T at program.py:7, in <module>"
