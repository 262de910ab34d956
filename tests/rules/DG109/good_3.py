import torch

hidden = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
x = torch.tensor([1.0, 2.0, 3.0, 5.0])
kept = ~hidden.bool()
mean = (x * kept).sum() / kept.sum()
