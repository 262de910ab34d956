import torch

torch.manual_seed(0)
tracks = torch.tensor([512_600.0, 98_700.0]) + 2000 * torch.rand(80, 2)
found = tracks[torch.randperm(80)] + 0.5
distances = torch.cdist(tracks, found)  # by a matrix product
nearest = distances.argmin(1)  # expect: DG904 "`distances.argmin(1)`: 30 of 80 come out otherwise than in float64: 64 instead of 77; the digits are lost at torch.cdist(tracks, found) at program.py:6, in <module>"
print(nearest.sum().item() >= 0)
