"""A copy is drawn anew, and the weights stay what they were."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).bfloat16()
for module in model:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight.float(), std=0.02)  # expect: DG103 "`module.weight.float()` gives a new float32 tensor, and `normal_` writes to that one, which is thrown away: `module.weight` stays as it was"
print(model[0].weight.std() > 0.05)
