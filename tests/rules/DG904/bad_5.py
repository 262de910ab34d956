import torch

table = torch.linspace(1, 1000, 1000).flip(0) / 1000 * 1000
found = (table == torch.tensor(254)).any()  # expect: DG904 "`table == torch.tensor(254)`: 1 of 1 equal values are not found: 254.000015 for 254; rounded in float32: torch.linspace(1, 1000, 1000).flip(0) / 1000 at program.py:3, in <module>"
