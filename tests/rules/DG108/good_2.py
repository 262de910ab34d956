import torch

positions = torch.arange(257, dtype=torch.bfloat16) / 256
image = torch.arange(256).half() / 255
