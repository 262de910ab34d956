import torch

chances = torch.full((800,), 0.3)
print(-chances.prod().log())  # expect: DG901 "`chances.prod().log()`: 1 of 1 values become infinite or NaN in float32; it reaches a result"
