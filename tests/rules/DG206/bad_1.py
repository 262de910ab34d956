import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, -1e9)  # expect: DG206 "`scores.masked_fill(mask, -1e9)` was refused: value cannot be converted to type c10::Half without overflow"
# fix: use `torch.finfo(x.dtype).min` in place of a constant, or `float("-inf")`; `torch.iinfo` for integers
