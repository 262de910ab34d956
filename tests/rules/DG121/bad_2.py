import torch
from torch import nn


class Ensemble(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x):
        first, second = (member(x) > 0 for member in self.members)
        return (first + second) / 2  # expect: DG121 "`first + second` adds bool tensors: <...> values are True in both, and their sum is True, a count of 1"


torch.manual_seed(0)
model = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)])
print(model(torch.randn(8, 4)).mean().item())
# fix: count in integers: make the total with `dtype=torch.int64`, or `.int()` on what is added
