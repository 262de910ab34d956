import numpy as np
import torch

days = 2_460_310.5 + np.arange(400) * 0.0137
t = torch.as_tensor(days, dtype=torch.float32)
t = t - t.min()  # expect: DG902 "`t - t.min()`: an error of 6e-06 % comes in, 3.9 % goes out: 5 where float64 has 5.124; it reaches values that the program reads; rounded in float32: torch.as_tensor(days, dtype=torch.float32) at program.py:5, in <module>"
phases = (t * 7.3) % 1.0
print([round(phase, 2) for phase in phases[:6].tolist()])
