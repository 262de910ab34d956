import torch
from torch import nn

torch.manual_seed(0)
head = nn.Linear(32, 8).to(torch.bfloat16)
hidden = torch.rand(4096, 32).to(torch.bfloat16)
gradient = torch.zeros_like(head.weight)
for chunk in hidden.split(8):
    gradient += head(chunk).mT @ chunk  # expect: DG903 "`gradient += head(chunk).mT @ chunk`: a total stands still: -632 where float32 has -823.4; it reaches a number that the program reads"
print(gradient.float().norm().item())
