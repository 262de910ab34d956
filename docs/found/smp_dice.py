import torch
from segmentation_models_pytorch.losses import DiceLoss

torch.manual_seed(0)
logits, target = torch.randn(2, 2, 256, 256), torch.randint(2, (2, 256, 256))
for dtype in (torch.float32, torch.float16):
    print(dtype, DiceLoss("multiclass")(logits.to(dtype), target).item())
