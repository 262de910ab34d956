import torch

rows = [2**24 + 2 * row + 1 for row in range(64)]
places = torch.Tensor(rows)
ids = places.long()  # expect: DG904 "`places.long()`: 64 of 64 come out otherwise than in float64: 16777216 instead of 16777217; rounded in float32: torch.Tensor(rows) at program.py:4, in <module>"
print(ids.unique().numel())
