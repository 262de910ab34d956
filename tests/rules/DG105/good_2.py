import torch

mask = torch.full((3, 3), -torch.inf).triu(1)
scores = torch.zeros(3, 3).half()
weights = (scores + mask.half()).softmax(-1)
