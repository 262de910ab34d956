import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(16, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x.float())).to(x.dtype)


model = Adapted(nn.Linear(16, 16).bfloat16())
out = model(torch.ones(2, 16).bfloat16())  # expect: DG506 "`down.weight`, `up.weight`: float32, where the other parameters of Adapted are bfloat16"
# fix: convert what was added like the model, `.to(torch.bfloat16)`, or cast what passes between them
