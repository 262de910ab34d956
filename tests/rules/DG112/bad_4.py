import numpy as np
import torch

scale = torch.as_tensor(np.sqrt(2.0))  # expect: DG112 "`torch.as_tensor(np.sqrt(2.0))` is float64 since it holds NumPy scalars; with Python numbers it would be float32"
