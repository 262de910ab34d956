import torch

weight = torch.randn(16, 8).bfloat16()
for _ in range(4):
    weight.mul_(1 - 1e-4 * 0.01)  # expect: DG903 "`weight.mul_(1 - 1e-4 * 0.01)`: 384 of 384 values stay as they were: 0.999999 is 1 in bfloat16; it reaches the tensor itself"
