import torch
from torchmetrics.functional.image import universal_image_quality_index

torch.manual_seed(0)
target = torch.randint(100, 156, (1, 3, 64, 64)) / 256
preds = target + torch.randint(-5, 6, target.shape) / 256
for dtype in (torch.float32, torch.bfloat16):
    print(dtype, universal_image_quality_index(preds.to(dtype), target.to(dtype)).item())
