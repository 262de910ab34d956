import torch

masks = torch.eye(3) > 0
taken = torch.zeros(3, dtype=torch.bool)
for mask in masks:
    taken += mask  # no two are both True
print((taken / 1.0).tolist(), (sum(masks) / 3).tolist())
