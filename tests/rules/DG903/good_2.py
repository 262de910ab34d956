import torch

weight = torch.ones(4)
average = weight.clone()
for step in range(300):
    weight += 0.01
    average.mul_(0.999).add_(weight, alpha=0.001)
print(average.tolist())
