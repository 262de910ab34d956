import torch

# Floats that are whole numbers, and a comparison with a number.
values = torch.randint(0, 3, (64,)).float()
print((values == torch.randint(0, 3, (64,))).sum(), (torch.rand(64) == 0).sum(), (torch.rand(64) == torch.rand(64)).sum())
