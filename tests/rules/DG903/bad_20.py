import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4).bfloat16()
weights = list(model.parameters())
for _ in range(20):
    with torch.no_grad():
        torch._foreach_mul_(weights, 1 - 3e-3 * 0.1)  # expect: DG903 "`torch._foreach_mul_(weights, 1 - 3e-3 * 0.1)`: 448 of 448 values stay as they were: 0.9997 is 1 in bfloat16; it reaches a result and a parameter"
print(model.weight.norm())
# fix: multiply a copy in float32, and keep that: a cast back rounds the change away again
