import torch

x = torch.zeros(3, device="meta")
y = x * torch.tensor(2.0) + 1.0
