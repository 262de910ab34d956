import torch

table = torch.linspace(1, 1000, 1000).flip(0) / 1000 * 1000
found = torch.isclose(table, torch.tensor(254.0)).any()
print(found.item())
