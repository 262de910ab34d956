import numpy as np
import torch

scale = torch.as_tensor([np.float32(1.5), 2.0])
count = torch.tensor([np.int64(1)])
