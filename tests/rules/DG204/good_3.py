import torch
import torch.nn.functional as F
from torch import nn

model, x, y = nn.Linear(4, 1), torch.randn(3, 4), torch.rand(3, 1)
p = torch.sigmoid(model(x))
loss = F.binary_cross_entropy(p, y)
loss.backward()
