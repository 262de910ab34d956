import torch
from torch import nn

checkpoint = nn.Linear(4, 4).bfloat16().state_dict()

model = nn.Linear(4, 4)
model.load_state_dict(checkpoint, assign=True)
out = model(torch.ones(1, 4).bfloat16())
