import torch

weight = torch.ones(8, dtype=torch.float16)
scale = torch.full((8,), 1e-5, dtype=torch.float16)
variance = (weight * scale).square()  # expect: DG901 "`(weight * scale).square()`: 8 of 8 values become zero in float16, where float32 has 1.003e-10; it reaches values that the program reads"
print(torch.log(variance.float() + 1e-20).tolist())
