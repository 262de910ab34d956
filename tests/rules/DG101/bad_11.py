import math

import torch

received = torch.rand(400)  # float64 by name is meant, as long as no layer refuses it
t = torch.arange(90_000_000, 90_000_400, dtype=torch.float64) / 4.0e6
baseband = received * torch.cos(2 * math.pi * 1.0003e6 * t)  # expect: DG101 info "`received * torch.cos(2 * math.pi * 1.0003e6 * t)` mixes float64 and float32, 3.1 KiB"
print(baseband.view(-1, 200).mean(1).tolist())
