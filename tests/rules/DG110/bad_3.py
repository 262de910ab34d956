import torch
import torch.nn.functional as F

probabilities = torch.rand(3)
labels = torch.tensor([0, 1, 1])
F.binary_cross_entropy(probabilities, labels)  # expect: DG110 "`F.binary_cross_entropy(probabilities, labels)` was refused: Found dtype Long but expected Float; `operand 1` = i64[3] on cpu (torch.tensor([0, 1, 1]) at program.py:5, in <module>: int64)"
