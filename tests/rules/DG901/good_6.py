"""What is compared with zero is zero, or as good as zero, in each dtype."""

import torch

x = torch.rand(64, generator=torch.Generator().manual_seed(0)).half()
same = (x * 1.5 - x * 1.5).abs().sum() == 0
dead = torch.nn.functional.relu(-x).max() == 0
alike = (x.float() * 3 - x * 3).norm() != 0
print(bool(same), bool(dead), bool(alike), bool(x.softmax(0).sum() == 1))
