import torch

total = torch.zeros((), dtype=torch.bfloat16)
for value in torch.ones(200, dtype=torch.bfloat16):
    total += value
print(total.item())
