import torch

weight = torch.ones(4)
average = weight.bfloat16()
for step in range(300):
    weight += 0.01
    average.mul_(0.999).add_(weight, alpha=0.001)  # expect: DG903 "`average.mul_(0.999).add_(weight, alpha=0.001)`: a total stands still: 1.078 where float32 has 1.41; it reaches values that the program reads"
print(average.tolist())
