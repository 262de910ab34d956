import torch

hours = 500 + torch.linspace(0, 1, 60)[:, None]
squares = hours.pow(2)
distance = (squares + squares.T - 2 * hours @ hours.T).clamp_min(0)
kernel = torch.exp(-0.5 * distance) + 0.01 * torch.eye(60)
root, _ = torch.linalg.cholesky_ex(kernel)
print(root.diagonal().log().sum().item())  # expect: DG901 "`root.diagonal().log()`: 1 of 60 values become infinite or NaN in float32, where float64 has -2.136; it reaches a number that the program reads; the digits are lost at squares + squares.T - 2 * hours @ hours.T at program.py:5, in <module>"
