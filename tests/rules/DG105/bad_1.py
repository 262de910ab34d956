import torch

x = torch.full((2, 8), 300.0).half()
variance = x.pow(2).mean(-1, keepdim=True)  # expect: DG105 "`x.pow(2)` makes 16 of 16 finite values infinite in float16, whose largest value is 65504"
y = x * torch.rsqrt(variance + 1e-6)
# fix: compute it in a wider dtype, or clamp it first: `.float()` on what goes in, and back to half when the values fit
