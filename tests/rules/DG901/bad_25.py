import torch

total = torch.zeros((), dtype=torch.float16)
for _ in range(60):
    loss = torch.tensor(201.3)
    total += loss.half() * 16  # expect: DG901 "`total += loss.half() * 16`: 1 of 1 values become infinite or NaN in float16, where float32 has 1.932e+05; it reaches a number that the program reads"
print(total.item())
# fix: compute it in float32, or scale what goes in: float16 holds values from 6.1e-5 to 65504
