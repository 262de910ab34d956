import torch

torch.manual_seed(0)
points = torch.randn(6, 40, 8)
covariance = points.mT @ points
values, vectors = torch.linalg.eigh(covariance)
u, s, v = torch.linalg.svd(points @ torch.diag(torch.tensor([3.0, 3, 3, 2, 1, 1, 0.5, 0.5])), full_matrices=True)
whole = torch.linalg.eigh(torch.diag(torch.ones(4)) * 1.1 + points[0, :4, :4] * 0).eigenvectors
rebuilt = vectors @ torch.diag_embed(values) @ vectors.mT
print(vectors.sum().item(), u.sum().item(), v.sum().item(), whole.sum().item(), (rebuilt - covariance).norm().item())
