import torch

scores = torch.randn(2, 2).half()
scores[:, 0].fill_(-1e9)  # expect: DG206 "`scores[:, 0].fill_(-1e9)` was refused: value cannot be converted to type c10::Half without overflow"
