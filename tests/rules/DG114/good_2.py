import torch

target = torch.tensor([0, 1, 20], dtype=torch.uint8)
kept = target[target != -100]
