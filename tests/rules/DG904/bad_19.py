import numpy as np
import torch

grid = torch.tensor([0.1, 0.2, 0.3, 0.5])
reference = torch.tensor(np.array([0.1, 0.2, 0.3, 0.5]))
print((grid == reference).sum().item())  # expect: DG904 "`grid == reference`: 3 of 4 compare what is equal in float32: 0.100000001 with 0.1"
