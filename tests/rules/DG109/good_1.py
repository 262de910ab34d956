import torch

now = torch.tensor([3, 9], dtype=torch.uint8)
before = torch.tensor([5, 5], dtype=torch.uint8)
change = now.int() - before.int()
