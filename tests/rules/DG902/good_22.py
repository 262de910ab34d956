import torch

torch.manual_seed(0)
path = torch.randn(50, dtype=torch.float64)
exact, single = path * (1 + 1e-10), path.float()
for _ in range(20):
    single, exact = single + 0.1 * single.flip(0), exact + 0.1 * exact.flip(0)
print(f"float32 is off by {(single.double() - exact).norm().item():.1e}")

for _ in range(3):
    matrix, right = torch.randn(20, 20, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64)
    factors = torch.linalg.lu_factor(matrix.float())
    solution = torch.linalg.lu_solve(*factors, right.float()).double()
    for _ in range(6):  # iterative refinement
        rest = right - matrix @ solution
        print(f"{(rest.norm() / right.norm()).item():.1e}")
        solution = solution + torch.linalg.lu_solve(*factors, rest.float()).double()
