import torch

p = torch.tensor([0.25, 1.0], dtype=torch.bfloat16)
q = p.clamp(max=1 - 1e-6)  # expect: DG115 "`p.clamp(max=1 - 1e-6)`: 0.999999 becomes 1 in bfloat16"
print((1 - q).log().sum().item())
