import torch

torch.manual_seed(0)
points = torch.randn(40, 3)
print(torch.linalg.eigvalsh(points @ points.T).min().item())
