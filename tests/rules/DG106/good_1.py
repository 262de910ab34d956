import torch

tokens = torch.tensor([[3, 5, 9]])
scores = torch.tensor([[0.9, 1.0, 0.4]])
kept = torch.zeros_like(tokens, dtype=scores.dtype)
kept[:, :3] = scores
