import torch

ids = torch.tensor([16777217, 16777219, 33554435])
kept = ids.float().long()  # expect: DG904 "`ids.float().long()`: 3 of 3 come out otherwise than in float64: 16777216 instead of 16777217; rounded in float32: ids.float() at program.py:4, in <module>"
print(kept.tolist())
