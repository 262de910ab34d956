import torch

labels = torch.tensor([0, 1, 1])
accuracy = labels.mean()  # expect: DG110 "`labels.mean()` was refused: mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: Long; `operand 0` = i64[3] on cpu (torch.tensor([0, 1, 1]) at program.py:3, in <module>: int64)"
