import torch
from pytorch_msssim import ms_ssim

torch.manual_seed(0)
x = torch.randint(256, (1, 3, 192, 192)).float()
y = (x + 12 * torch.randn_like(x)).round().clamp(0, 255)
for dtype in (torch.float32, torch.bfloat16):
    print(dtype, ms_ssim(x.to(dtype), y.to(dtype)).item())
