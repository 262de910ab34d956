import torch

# At the solution each step is less than a unit of float32: nothing moves any more, and nothing is lost.
torch.manual_seed(0)
a = torch.randn(32, 32)
a, b = a @ a.T / 32 + torch.eye(32), 100 * torch.randn(32)
x = torch.zeros(32)
for step in range(2000):
    x = x + 0.2 * (b - a @ x)
print(f"{(x - torch.linalg.solve(a, b)).abs().max().item():.1e}")
