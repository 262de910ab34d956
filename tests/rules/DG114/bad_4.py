import torch

labels = torch.zeros(4, dtype=torch.uint8)
labels.fill_(-1)  # expect: DG114 "`labels.fill_(-1)`: -1 becomes 255 in uint8"
