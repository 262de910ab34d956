import numpy as np
import torch
from torch import nn

rows = np.ones((3, 4))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model(torch.from_numpy(rows))  # expect: DG101 error "`model(torch.from_numpy(rows))` was refused: it mixes float64 and float32"
