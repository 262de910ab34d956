import torch

gradient = torch.full((64,), 1e-5).half()
norm = (gradient * gradient).sum().sqrt()  # expect: DG901 "`gradient * gradient`: 64 of 64 values become zero in float16, where float32 has 1e-10; it reaches a comparison"
ratio = 1e-3 if norm != 0 else 1.0  # the only one that reads it
print(ratio)
