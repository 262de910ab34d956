import numpy as np
import torch

rewards = [0.0, np.float64(1.5), 2.0]
returns = torch.tensor(rewards)  # expect: DG112 "`torch.tensor(rewards)` is float64 since it holds NumPy scalars; with Python numbers it would be float32"
