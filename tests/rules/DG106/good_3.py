import torch

hidden = torch.zeros(3, dtype=torch.bool)
hidden.copy_(torch.tensor([0.0, 0.5, 1.0]))
