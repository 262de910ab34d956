import torch
from torch import nn


class SumConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x, edge_index):
        source, target = edge_index
        messages = self.lin(x)[source.long()]
        index = target[:, None].expand(-1, 2)
        return torch.zeros_like(x).scatter_add(0, index, messages)  # expect: DG110 "`torch.zeros_like(x).scatter_add(0, index, messages)` was refused: scatter(): Expected dtype int32/int64 for index; `operand 1` = i16[3,2] on cpu (torch.tensor([[0, 1, 2], [1, 2, 0]], dtype=torch.int16) at program.py:17, in <module>: int16)"


edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]], dtype=torch.int16)
SumConv()(torch.randn(3, 2), edge_index)
