import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.0, 4)

    def forward(self, q):
        return q * self.scale  # expect: DG102 "`q * self.scale` mixes bfloat16 and float32: the result is float32, 48 B"


model = Rotary().bfloat16()
q = model(torch.randn(3, 4, dtype=torch.bfloat16))
# fix: cast one side where it is made: `.to(torch.bfloat16)` on the float32 operand where it is made, or on the result; where float32 is meant, as in a loss, `.to(torch.float32)` on the other
