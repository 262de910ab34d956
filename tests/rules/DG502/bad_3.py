import torch
from torch import nn

norm = nn.InstanceNorm1d(4, momentum=None, track_running_stats=True).half()
for _ in range(2):
    out = norm(torch.randn(2, 4, 6).half())  # expect: DG502 info "`running_mean` of InstanceNorm1d is float16, and training updates it by 1 of the difference"
