import torch

torch.manual_seed(0)
weight = (torch.randn(64, 64) * 0.5).bfloat16()
change = torch.randn(64, 64) * 4e-4
for _ in range(60):
    weight += change.to(weight.dtype)  # expect: DG903 "`weight += change.to(weight.dtype)`: a total stands still: -0.5508 where float32 has -0.4797; it reaches a result"
merged = weight.float()
