import torch

betas = torch.linspace(0.03, 0.1, 1000) ** 2
alphas = torch.cumprod(1 - betas, 0).bfloat16()
ratio = alphas / (1 - alphas)  # expect: DG901 "`alphas / (1 - alphas)`: 2 of 1000 values become infinite or NaN in bfloat16, where float32 has 1110; it reaches a number that the program reads"
print(ratio[0].item())
