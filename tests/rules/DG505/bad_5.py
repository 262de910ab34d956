import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk = nn.Linear(4, 8)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return (q @ k.transpose(1, 2)).masked_fill(mask, float("-inf"))  # expect: DG505 "`(q @ k.transpose(1, 2)).masked_fill(mask, float(\"-inf\"))` was refused: Tensor on device meta is not on the expected device cpu!; `operand 1` = bool[3,3] on cpu (torch.ones(x.shape[1], x.shape[1]).triu(1).bool() at program.py:12, in forward: bool)"


model = Attention().to("meta")
model(torch.zeros(1, 3, 4, device="meta"))
