import torch
from torch import nn

logits = nn.Linear(4, 100).bfloat16()(torch.ones(1, 4).bfloat16())
noise = torch.empty_like(logits, dtype=torch.float64).exponential_()  # float64 by name is meant where integers come of it
print((logits.softmax(-1) / noise).argmax(-1))  # expect: DG101 info "`logits.softmax(-1) / noise` mixes float64 and bfloat16, 800 B"
