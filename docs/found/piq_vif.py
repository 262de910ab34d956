import torch
from piq import vif_p

torch.manual_seed(0)
x = torch.randint(256, (1, 3, 96, 96)) / 256
y = (x + torch.randint(-12, 13, x.shape) / 256).clamp(0, 1)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    print(dtype, vif_p(x.to(dtype), y.to(dtype)).item())
