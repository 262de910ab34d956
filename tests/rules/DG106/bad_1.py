import torch

tokens = torch.tensor([[3, 5, 9]])
scores = torch.tensor([[0.9, 1.0, 0.4]])
kept = torch.zeros_like(tokens)
kept[:, :3] = scores  # expect: DG106 "`kept[:, :3] = scores` writes float32 values into int64: 2 of 3 lose their fraction"
# fix: allocate the target with a floating dtype, or, where whole numbers are meant, `.round().to(torch.int64)`
