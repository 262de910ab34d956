import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()

twin = nn.Linear(2, 1)
twin.load_state_dict(model.state_dict())
resumed = torch.optim.Adam(twin.parameters())
resumed.load_state_dict(optimizer.state_dict())
