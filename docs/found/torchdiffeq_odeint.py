import torch
from torchdiffeq import odeint

for dtype in (torch.float32, torch.bfloat16):
    y = odeint(lambda t, y: -y, torch.ones(1, dtype=dtype), torch.tensor([0.0, 0.25]))
    print(dtype, y[-1].item())
