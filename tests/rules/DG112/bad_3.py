import numpy as np
import torch

state = 0.5 + np.float64(True)
metric = torch.tensor([[state, 3], [1.0, 2.0]])  # expect: DG112 "`torch.tensor([[state, 3], [1.0, 2.0]])` is float64 since it holds NumPy scalars; with Python numbers it would be float32"
