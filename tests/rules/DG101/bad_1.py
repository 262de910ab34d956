import numpy as np
import torch

images = torch.rand(2, 3, 4, 4)
mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
images = images - mean[:, None, None]  # expect: DG101 "`images - mean[:, None, None]` mixes float64 and float32, 768 B"
# fix: convert where the float64 is born: `torch.from_numpy(np.array([0.485, 0.456, 0.406])).to(torch.float32)`
