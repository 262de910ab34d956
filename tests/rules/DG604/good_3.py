import torch
from torch import nn

layer = nn.Linear(2, 1).bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
layer(torch.tensor([[0.1, 0.2]]).bfloat16()).sum().backward()
optimizer.step()
checkpoint = optimizer.state_dict()
for state in checkpoint["state"].values():
    state["momentum_buffer"] = state["momentum_buffer"].float()

optimizer.load_state_dict(checkpoint)
optimizer.step()
