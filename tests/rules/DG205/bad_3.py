import torch
from torch import nn


def grouped_gemm(a, b):
    if a.dtype is torch.float32:
        raise ValueError("grouped_gemm: half precision inputs required")
    return a @ b


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, tokens):
        return grouped_gemm(tokens, self.weight)  # expect: DG205 "`grouped_gemm(tokens, self.weight)` under autocast got `a` in float32: grouped_gemm: half precision inputs required"


with torch.autocast("cpu", dtype=torch.float16):
    Experts()(torch.randn(2, 4))
