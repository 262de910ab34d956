import torch
from vit_pytorch.rvt import RvT

model = RvT(image_size=32, patch_size=8, num_classes=10, dim=64, depth=2, heads=4, mlp_dim=64)
image = torch.rand(1, 3, 32, 32)
model(image)
model.bfloat16()(image.bfloat16())
