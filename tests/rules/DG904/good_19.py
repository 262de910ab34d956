import numpy as np
import torch

torch.manual_seed(0)
exact = torch.tensor(np.linspace(0, 1, 11))
single = exact.float()
print("held exactly by float32:", (single == exact).sum().item(), torch.isin(exact, single).sum().item())
grid = torch.tensor([0.25, 0.5, 3.0, -1.0])
print((grid == torch.tensor(np.array([0.25, 0.5, 3.0, -1.0]))).sum().item())
print(torch.isin(torch.randn(200), torch.randn(200, dtype=torch.float64)).sum().item())
print(bool((torch.rand(64) == torch.rand(64, dtype=torch.float64)).any()))
print((grid == 0.1).sum().item(), torch.isin(grid, torch.tensor([0.25, 0.1])).sum().item())
print(torch.allclose(grid.double(), torch.tensor(np.array([0.25, 0.5, 3.0, -1.0]))))
