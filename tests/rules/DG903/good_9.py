import torch
from torch import nn

torch.manual_seed(0)
base = nn.Linear(32, 16, bias=False)
low, high = torch.randn(2, 32) * 0.01, torch.randn(16, 2) * 0.01
with torch.no_grad():
    base.weight.data = base.weight.data.bfloat16()
    noisy = base.weight.data + (high @ low).bfloat16()  # that is no weight
    base.weight.data.copy_((base.weight.data.float() + 10 * (high @ low)).bfloat16())
    print(noisy.shape, base(torch.ones(1, 32, dtype=torch.bfloat16)).shape)
