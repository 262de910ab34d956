import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x = self.layer(x)
        return x + torch.ones(3, dtype=x.dtype)


traced = torch.jit.trace(Net(), torch.rand(2, 3))  # expect: DG802 warning "the trace holds `ones` at program.py:12 as float32, and the module was converted to float16 since"
y = traced.half()(torch.rand(2, 3).half())
# fix: trace the model in the dtype in which it will run, or derive dtypes in the graph: `torch.zeros_like`, `.type_as`
