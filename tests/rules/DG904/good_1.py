import torch

bias = torch.tensor([8.001, 8.0125, 8.010])
expert = (torch.zeros(1, 3) + bias).argmax(-1)
print(expert.tolist())
