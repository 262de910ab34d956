import torch

p = torch.tensor([0.5, 0.5, 0.0]).bfloat16()
entropy = -(p * (p + 1e-8).log()).sum()
