import torch

mean = torch.rand(3, 224, 224, dtype=torch.float64)
total = 0.0
for _ in range(12):
    images = torch.ones(3, 224, 224)
    total += (images - mean.float()).sum().item()  # expect: DG104 "the same float64 tensor of 1.1 MiB was cast to float32 12 times, 6.9 MiB in all, and it did not change"
