import torch

losses = torch.linspace(0.0, 1.0, 10)
middle = torch.quantile(losses, 0.5)
ends = torch.nanquantile(losses, torch.tensor([0.1, 0.9]))
