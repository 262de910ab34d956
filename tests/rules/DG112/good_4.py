import numpy as np
import torch

table = torch.tensor(np.array([1.0, 2.0]))
