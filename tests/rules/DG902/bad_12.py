import torch

torch.manual_seed(0)
pressure = 3000 + torch.randn(50, 400)
variance = (pressure * pressure).mean(-1) - pressure.mean(-1) ** 2  # expect: DG902 "`(pressure * pressure).mean(-1) - pressure.mean(-1) ** 2`: an error of 3.4e-05 % comes in, 398 % goes out: -3 where float64 has 1.019; it reaches a number that the program reads; rounded in float32: pressure.mean(-1) ** 2 at program.py:5, in <module>"
print(variance.clamp(min=0).sqrt().mean().item())
