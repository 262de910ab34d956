import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk = nn.Linear(4, 8)

    def forward(self, x, mask):
        q, k = self.qk(x).chunk(2, -1)
        scores = q @ k.transpose(-1, -2)
        scores = scores.masked_fill(mask, torch.finfo(torch.float32).min)  # expect: DG206 "`scores.masked_fill(mask, torch.finfo(torch.float32).min)` was refused: value cannot be converted to type c10::Half without overflow"
        return scores.softmax(-1)


mask = torch.ones(3, 3).triu(1).bool()
with torch.autocast("cpu", dtype=torch.float16):
    Attention()(torch.randn(1, 3, 4), mask)
