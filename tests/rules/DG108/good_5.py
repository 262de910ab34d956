import torch

mask = torch.ones(1, 3000).half()
positions = mask.long().cumsum(-1) - 1
