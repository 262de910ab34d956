import torch

total = torch.zeros((), dtype=torch.float64)
for step in range(4):
    loss = torch.randn(8).square().mean()
    total += loss
average = total.item() / 4
