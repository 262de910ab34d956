import torch

scores = torch.randn(2, 3)
padding = torch.tensor([[0, 0, 1], [0, 1, 1]])
scores = scores.masked_fill(padding, float("-inf"))  # expect: DG110 "`scores.masked_fill(padding, float(\"-inf\"))` was refused: masked_fill_ only supports boolean masks, but got mask with dtype long int; `operand 1` = i64[2,3] on cpu (torch.tensor([[0, 0, 1], [0, 1, 1]]) at program.py:4, in <module>: int64)"
