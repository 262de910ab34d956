import torch
from torch import nn

checkpoint = nn.Linear(4, 4).bfloat16().state_dict()

model = nn.Linear(4, 4)
model.load_state_dict({name: value.float() for name, value in checkpoint.items()})
