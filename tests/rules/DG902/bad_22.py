"""Both operands are float32, and autocast rounds them on their way into a product: a cast of them changes nothing."""

import torch

generator = torch.Generator().manual_seed(0)
x, weight = 100 * torch.randn(64, 16, generator=generator), torch.rand(16, 16, generator=generator)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = x @ weight
    features = y.cos()  # expect: DG902 "`y.cos()`: an error of 0.59 % comes in, 102 % goes out: 0.6992 where float32 has -0.8727; it reaches a result; rounded in bfloat16: x @ weight at program.py:8, in <module>"
# fix: compute `x @ weight` in float32 outside autocast: `with torch.autocast("cpu", enabled=False):` around it, and `.float()` on what is half
