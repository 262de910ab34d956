import torch


def pair(k, n):
    b = 2 * n - 1
    row = torch.floor((b - torch.sqrt((b * b - 8 * k).float())) / 2).long()  # expect: DG904 "`...long(...)`: <...> of 5000 come out otherwise than in float64: <...> instead of <...>; rounded in float32: (b * b - 8 * k).float() at program.py:6, in pair"
    return row, k - row * n + row * (row + 1) // 2 + row + 1


torch.manual_seed(0)
n = 1_000_000
row, column = pair(torch.randint(0, n * (n - 1) // 2, (5000,)), n)
print(((row < column) & (column < n)).float().mean().item())
# fix: keep integers as they are: `(b * b - 8 * k).float()` at program.py:6, in pair rounds them
