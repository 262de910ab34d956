import torch
from torch import nn

model, nodes = nn.Linear(4, 2), torch.zeros(2, 2)
target = torch.tensor([0, 0, 1], dtype=torch.int16)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    messages = model(torch.randn(3, 4)).float()
    nodes.index_add_(0, target, messages)  # expect: DG110 "`nodes.index_add_(0, target, messages)` was refused: index_add_(): Expected dtype int32/int64 for index but got: Short; `operand 1` = i16[3] on cpu (torch.tensor([0, 0, 1], dtype=torch.int16) at program.py:5, in <module>: int16)"
