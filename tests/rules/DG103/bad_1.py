import torch

x = torch.ones(3, dtype=torch.float64)
x.float()  # expect: DG103 "`x.float()` gives a new float32 tensor, and it is thrown away: `x` stays float64"
y = x * 2
# fix: keep the result: `x = x.float()`; or delete the line
