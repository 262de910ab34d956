import torch

packed = torch.tensor([-1, 0, 3], dtype=torch.int8)
full = packed == 0xFF
