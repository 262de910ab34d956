import torch

counts = torch.tensor([3, 4, 5])
weights = torch.rand(3)
mean = (counts * weights).sum()  # expect: DG102 info "`counts * weights` mixes int64 and float32: the result is float32, 12 B"
