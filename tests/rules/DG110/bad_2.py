import torch
from torch import nn

embedding = nn.Embedding(10, 4)
tokens = torch.tensor([1.0, 2.0, 5.0])
embedding(tokens)  # expect: DG110 "`embedding(tokens)` was refused: Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got torch.FloatTensor instead (while checking arguments for embedding); `operand 1` = f32[3] on cpu (torch.tensor([1.0, 2.0, 5.0]) at program.py:5, in <module>: float32)"
