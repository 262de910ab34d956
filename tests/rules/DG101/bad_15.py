import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
stamps = torch.from_numpy(1.7e9 + np.arange(0.0, 50.0, 0.5))
gaps = stamps[1:] - stamps[:-1]
loss = ((model(torch.rand(99, 4)).squeeze(-1) - gaps) ** 2).mean()  # expect: DG101 "`model(torch.rand(99, 4)).squeeze(-1) - gaps` mixes float64 and float32, 792 B"
loss.backward()
print(loss.item())
