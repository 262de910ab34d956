import numpy as np
import torch
from torch.utils.data import DataLoader

rows = [(torch.ones(2), np.float64(3.5))] * 4
for x, target in DataLoader(rows, batch_size=2):  # expect: DG112 "a tensor of `x, target` is float64 since it holds NumPy scalars; with `numpy.float32` it would be float32"
    loss = (x.sum(1) - target).abs().mean()
# fix: give `np.float32(...)` in the data set (of Python numbers `default_collate` makes float64, too)
