import torch
from monai.losses import DiceLoss

torch.manual_seed(0)
logits, target = torch.randn(1, 1, 64, 64, 64), torch.randint(2, (1, 1, 64, 64, 64))
for dtype in (torch.float32, torch.float16):
    print(dtype, DiceLoss(sigmoid=True)(logits.to(dtype), target.to(dtype)).item())
