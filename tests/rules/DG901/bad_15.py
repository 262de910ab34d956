"""An epsilon that is 0 in float16 below a power."""

import torch

degree = torch.zeros(60, dtype=torch.float16)
degree[:40] = 4
norm = (degree + 1e-10) ** -0.5  # expect: DG901 "`(degree + 1e-10) ** -0.5`: 20 of 60 values become infinite or NaN in float16, where float32 has 100000; it reaches a number that the program reads"
print(norm.max().item())
# fix: 1e-10 is 0 in float16: use an eps that float16 has, 1e-4 and up, or compute it in float32
