import torch
from torch import nn

model = nn.Linear(3, 2).to("meta")
batch = torch.rand(8, 3)
model(batch)  # expect: DG505 "`model(batch)` was refused: Tensor on device meta is not on the expected device cpu!; `operand 1` = f32[8,3] on cpu (torch.rand(8, 3) at program.py:5, in <module>: float32)"
