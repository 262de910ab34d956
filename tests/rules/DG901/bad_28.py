import torch

points = torch.linspace(0, 4, 400, dtype=torch.float64)
kernel = torch.exp(-0.5 * (points[:, None] - points) ** 2) + 0.04 * torch.eye(400, dtype=torch.float64)
volume = torch.linalg.det(kernel)  # expect: DG901 "`torch.linalg.det(kernel)`: 1 of 1 values become zero or infinite in float64, as the determinant of a matrix that is not singular"
print(torch.log(volume.clamp_min(1e-300)).item())
# fix: compute its logarithm: `torch.linalg.slogdet(matrix).logabsdet`
