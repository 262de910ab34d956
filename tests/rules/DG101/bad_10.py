"""Times in float64 have more digits than float32: the advice says so."""

import numpy as np
import torch

times = torch.from_numpy(np.arange(8) * 0.1 + 1.55e9)
weights = torch.rand(8, 8)
print((weights * times).sum(1).shape)  # expect: DG101 "`weights * times` mixes float64 and float32, 512 B"
# fix: convert where the float64 is born: `torch.from_numpy(np.arange(8) * 0.1 + 1.55e9).to(torch.float32)`; float32 is off by up to 0.7 there: subtract an offset before
