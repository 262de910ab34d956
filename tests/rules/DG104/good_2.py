import torch

for _ in range(12):
    data = torch.rand(256, 128, dtype=torch.float64)
    x = data.float()
