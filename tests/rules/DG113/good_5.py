import torch

gap = torch.tensor([1.0, float("nan"), 2.0]).half()
scaled = gap / (gap.abs() + 1e-8)
gap /= gap.abs() + 1e-8
