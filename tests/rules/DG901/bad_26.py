import torch

total = torch.zeros(()).half()
for _ in range(21):
    total = total + torch.tensor(3221.3).half()  # expect: DG901 "`total + torch.tensor(3221.3).half()`: 1 of 1 values become infinite or NaN in float16, where float32 has 6.765e+04; it reaches a number that the program reads"
print(total.item())
# fix: compute it in float32, or scale what goes in: float16 holds values from 6.1e-5 to 65504
