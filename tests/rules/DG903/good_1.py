import torch

total = torch.zeros(())
for value in torch.ones(1000, dtype=torch.bfloat16):
    total = total + value
print(total.item())
