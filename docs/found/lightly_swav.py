import torch
from lightly.loss import SwaVLoss

torch.manual_seed(0)
first, second = torch.rand(2, 32, 64)  # cosine similarities
for dtype in (torch.float32, torch.float16):
    print(dtype, SwaVLoss()([first.to(dtype), second.to(dtype)], []).item())
