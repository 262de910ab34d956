import numpy as np
import torch

rewards = [0.0, np.float64(1.5), 2.0]
returns = torch.tensor([float(reward) for reward in rewards])
