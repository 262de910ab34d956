import torch

fractions = torch.arange(0, 1, 0.001, dtype=torch.bfloat16)
waves = fractions.sin()
