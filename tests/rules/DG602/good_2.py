import torch
from torch import nn

torch.set_default_dtype(torch.float64)
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 3)).square().mean().backward()
optimizer.step()
