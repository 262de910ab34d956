import torch

x = torch.full((4, 64), 300.0, dtype=torch.float16)
energy = x * x  # expect: DG901 "`x * x`: 256 of 256 values become infinite or NaN in float16, where float32 has 90000; it reaches a number that the program reads"
print(energy.mean().item())
# fix: compute it in float32, or scale what goes in: float16 holds values from 6.1e-5 to 65504
