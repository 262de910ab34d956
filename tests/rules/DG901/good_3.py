import torch

counts = torch.tensor([0.0, 1.0, 2.0])
means = torch.where(counts > 0, 6 / counts.clamp(min=1), 0.0)
print(means.tolist())
