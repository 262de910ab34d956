import torch

labels = torch.tensor([3, -1, 300])
kept = torch.zeros(5, dtype=torch.uint8)
kept[1:4] = labels  # expect: DG109 "`kept[1:4] = labels`: 2 of 3 values are outside of 0 to 255 and wrap around"
