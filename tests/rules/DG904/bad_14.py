import numpy as np
import torch

scores = (torch.rand(1000, generator=torch.Generator().manual_seed(0)) * 10).round() / 10
cuts = torch.from_numpy(np.arange(4, 11) / 10)
kept = scores[:, None] >= cuts  # expect: DG904 "`scores[:, None] >= cuts`: 203 of 7000 compare what is equal in float32: 0.899999976 with 0.9"
print([round(share, 2) for share in kept.float().mean(0).tolist()])
# fix: compare both in float32: `.to(torch.float32)` on the right side, which is float64
