import numpy as np
from torch.utils.data import DataLoader

rows = [(np.float32(1.0), np.float32(0.5)), (np.float32(2.0), np.float32(0.25))]
for x, target in DataLoader(rows, batch_size=2):
    (x - target).mean()
