import torch

average = torch.full((64,), 2.0, dtype=torch.bfloat16)
weight = torch.full((64,), 1.0, dtype=torch.bfloat16)
for _ in range(1000):
    average = average * 0.999 + weight * 0.001  # expect: DG903 "`average * 0.999 + weight * 0.001`: a total stands still: 2 where float32 has 1.368; it reaches a number that the program reads"
print(average.mean().item())
