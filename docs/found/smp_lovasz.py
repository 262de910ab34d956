import torch
from segmentation_models_pytorch.losses import LovaszLoss

logits, target = torch.randn(2, 3, 64, 64), torch.randint(3, (2, 64, 64))
LovaszLoss("multiclass")(logits, target)
LovaszLoss("multiclass")(logits.bfloat16(), target)
