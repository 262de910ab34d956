import torch
from diffusers import DDPMScheduler

torch.manual_seed(0)
image, noise = torch.randn(2, 1, 4, 8, 8).bfloat16()
for dtype in (torch.float32, torch.bfloat16):
    noisy = DDPMScheduler().add_noise(image.to(dtype), noise.to(dtype), torch.tensor([5]))
    print(dtype, (noisy - image).norm().item())
