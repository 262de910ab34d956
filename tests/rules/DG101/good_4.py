import numpy as np
import torch

x = torch.randn(4)
y = x * np.float64(0.5) / np.sqrt(8.0)
z = y + torch.tensor(2.0, dtype=torch.float64)
