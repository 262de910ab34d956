import numpy as np
import torch

seconds = 1.7e9 + np.cumsum(np.full(64, 0.25))
times = torch.from_numpy(seconds).float()
steps = times[1:] - times[:-1]  # expect: DG902 "`times[1:] - times[:-1]`: an error of 6e-06 % comes in, 100 % goes out: 0 where float64 has 0.25; it reaches a number that the program reads; rounded in float32: torch.from_numpy(seconds).float() at program.py:5, in <module>"
print((steps * 3.0).sum().item())
