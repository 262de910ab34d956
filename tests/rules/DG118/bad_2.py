import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 2).bfloat16()
stored = {name: tensor.data.view(torch.float16) for name, tensor in model.named_parameters()}  # expect: DG118 "`tensor.data.view(torch.float16)` reads the bits of bfloat16 as float16: -0.337891 becomes -1.66895"
other = nn.Linear(8, 2).half()
other.load_state_dict(stored)
print(other(torch.ones(1, 8).half()))
