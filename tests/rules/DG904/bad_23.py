import numpy as np
import torch


def voxels(points, size=0.25):
    p = torch.from_numpy(points).float()
    return torch.floor((p - p.min(0).values) / size).long()  # expect: DG904 "`torch.floor((p - p.min(0).values) / size).long()`: 2695 of 8000 come out otherwise than in float64: 22 instead of 21; rounded in float32: torch.from_numpy(points).float() at program.py:6, in voxels"


rng = np.random.default_rng(0)
tile = rng.integers(0, 2000, (4000, 2)) * 0.01 + np.array([389_400.0, 5_819_250.0])
print(len(torch.unique(voxels(tile), dim=0)))
# fix: stay in float64: `torch.from_numpy(points).float()` rounds
