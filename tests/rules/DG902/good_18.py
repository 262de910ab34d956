import torch
import torch.nn.functional as F

kernel, images = torch.ones(1, 1, 5, 5) / 25, torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
mean = F.conv2d(images, kernel)
variance = F.conv2d(images * images, kernel) - mean**2
likeness = (2 * mean * mean + 1e-4) * (2 * variance + 9e-4) / ((2 * mean**2 + 1e-4) * (2 * variance + 9e-4) + 1e-12)
print((1.0 - likeness).mean().item())  # 0 for images that are alike
