import math

import torch

bins = torch.linspace(0.1, 1.0, 7).softmax(0).cumsum(0)  # the last is 1
angle = bins[-1:] * (2 * math.pi)
print(torch.sin(angle).item(), torch.cos(angle).item())
