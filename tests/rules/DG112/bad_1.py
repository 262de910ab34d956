import numpy as np
import torch

losses = [0.5, 0.25]
history = torch.tensor([np.mean(losses), 0.0])  # expect: DG112 "`torch.tensor([np.mean(losses), 0.0])` is float64 since it holds NumPy scalars; with Python numbers it would be float32"
# fix: say which dtype is meant: `torch.tensor(..., dtype=torch.float32)`
