import torch

x = torch.randn(4, dtype=torch.bfloat16)
scale = torch.tensor(2.0)
y = torch.where(x > 0, x * scale, 0.1) * 0.5
