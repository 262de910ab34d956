import torch

average = torch.full((64,), 2.0, dtype=torch.bfloat16)
weight = torch.full((64,), 8.0, dtype=torch.bfloat16)
for _ in range(1000):
    average.mul_(0.999).add_(weight, alpha=0.001)  # expect: DG903 "`average.mul_(0.999).add_(weight, alpha=0.001)`: a total stands still: 4 where float32 has 5.794; it reaches a number that the program reads"
print(average.mean().item())
