import torch

mask = torch.full((4,), 255, dtype=torch.uint8)
mask[1] = 0
mask.masked_fill_(mask == 0, 7)
signed = torch.full((4,), -1, dtype=torch.int8)
signed[0] = -128
