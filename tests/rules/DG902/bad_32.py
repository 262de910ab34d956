import torch

strikes, step = torch.arange(3200.0, 5200.0, 100.0, dtype=torch.float32), 0.01


def value(spot):
    return spot * torch.special.ndtr(torch.log(spot / strikes) / 0.18)


spot = torch.tensor(4150.0)
curvature = (value(spot + step) - 2 * value(spot) + value(spot - step)) / step**2  # expect: DG902 "`value(spot + step) - 2 * value(spot) + value(spot - step)`: an error of 3e-05 % comes in, more than 1000 % goes out: -0.0009766 where float64 has -7.127e-09; it reaches a number that the program reads; rounded in float32: value(spot + step) - 2 * value(spot) at program.py:11, in <module>"
print(curvature.abs().max().item())
# fix: compute `value(spot + step) - 2 * value(spot) + value(spot - step)` and what it is computed from in float64
