import torch

x = torch.ones(3)
x.to(torch.float32)
