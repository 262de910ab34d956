import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).half()
images = torch.rand(3, 4)
model(images)  # expect: DG110 "`model(images)` was refused: mat1 and mat2 must have the same dtype, but got Float and Half; `operand 1` = f32[3,4] on cpu (torch.rand(3, 4) at program.py:5, in <module>: float32)"
# fix: cast the operand whose dtype differs: `.to(torch.float16)`
