import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.01)).to(torch.bfloat16)
for _ in range(3):
    model(torch.randn(6, 4).bfloat16()).sum().backward()  # expect: DG502 "`running_mean` of Sequential.1 is bfloat16, and training updates it by 0.01 of the difference"
# fix: keep norms in float32: `module.float()` on them after the model was converted (a float32 norm takes half inputs)
