import torch

# The decay begins at zero, and grows until it is felt.
weight = torch.randn(16, 8).bfloat16()
for step in range(8):
    weight.mul_(1 - 1e-3 * step)
