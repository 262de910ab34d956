import torch

image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
print((image.bfloat16() / 255).mean().item())
