import torch

decay = 0.9985
average = torch.ones(4)
for step in range(10):
    average = average * decay + torch.rand(4) * (1 - decay)
