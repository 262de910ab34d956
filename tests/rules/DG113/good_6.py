import torch

p = torch.tensor([0.5, float("nan"), -1.0]).half()
entropy = (p + 1e-8).log()
scale = (p.square() + 1e-8).rsqrt()
