import torch
from torch import nn

torch.manual_seed(0)
base = nn.Linear(32, 16, bias=False)
low, high = torch.randn(2, 32) * 0.01, torch.randn(16, 2) * 0.01
with torch.no_grad():
    base.weight.data = base.weight.data.bfloat16()
    base.weight.data.copy_(base.weight.data + (high @ low).bfloat16())  # expect: DG903 warning "`base.weight.data + (high @ low).bfloat16()`: 400 of 512 values stay as they were: 0.1348 where float32 has 0.1355; it reaches the tensor itself"
    print(base(torch.ones(1, 32, dtype=torch.bfloat16)).shape)
