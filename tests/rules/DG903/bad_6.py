import torch
from torch import nn

norm = nn.Parameter(torch.tensor([15.8125, 0.0035, -0.0015, 0.5], dtype=torch.bfloat16))
scaled = torch.ones(3, 4, dtype=torch.bfloat16) * (1 + norm)  # expect: DG903 "`1 + norm`: 2 of 4 values of the parameter are lost: 16.75 where float32 has 16.81; it reaches a parameter"
