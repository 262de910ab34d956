import torch

positions = torch.arange(4096, dtype=torch.float32)
print((positions * 0.5).tolist()[-1])
