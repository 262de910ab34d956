import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = torch.linspace(0.5, 1.0, 4)

    def forward(self, x):
        return self.fc(x) * self.scale


model = Net().to(torch.bfloat16)  # expect: DG503 warning "attribute `scale` of Net: a plain tensor, which `.to(torch.bfloat16)` left float32: float32 met bfloat16 at program.py:12, in forward"
out = model(torch.ones(2, 4).bfloat16())
# fix: `self.register_buffer('scale', ..., persistent=False)` in `__init__`, so that `.to()` reaches it; if it needs the digits of float32, cast what is made from it
