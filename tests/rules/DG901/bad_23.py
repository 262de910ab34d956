import torch

betas = torch.linspace(1e-4, 0.03, 400)
kept = torch.cumprod((1 - betas).half(), 0).float()
print(torch.log(kept / (1 - kept))[:3])  # expect: DG901 error "`kept / (1 - kept)`: 2 of 400 values become infinite or NaN in float32, where float64 has 9997; it reaches values that the program reads and a result; the digits are lost at torch.cumprod((1 - betas).half(), 0) at program.py:4, in <module>"
# fix: compute `torch.cumprod((1 - betas).half(), 0)` in float32, by a cast of what goes in: its result has lost the digits
