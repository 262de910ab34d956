import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 64).bfloat16()
x, labels = torch.randn(32, 8), torch.randint(0, 64, (32,))
nn.functional.cross_entropy(model(x.bfloat16()), labels).backward()
