import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(4, 8).bfloat16()
logits = model(torch.randn(2, 4, dtype=torch.bfloat16))
loss = F.cross_entropy(logits.float(), torch.tensor([1, 3]))
loss.backward()
