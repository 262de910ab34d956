"""Of a few rounds time has no more than a rounding; in float32 it has as good as none."""

import torch

time = torch.zeros(1).half()
for _ in range(10):
    time = time + 0.1
exact = torch.zeros(1)
while exact.item() < 1.0:
    exact = exact + 1e-3
level = torch.ones(1).bfloat16()
for gain in range(8):
    level = level + 0.1 * gain
print(time.item(), level.item())
