import torch
from torch import nn


class Positional(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.rand(256, 256, dtype=torch.float64)

    def forward(self, x):
        return x + self.table.to(x.dtype)  # expect: DG104 "the same float64 tensor of 512.0 KiB was cast to float32 10 times, 2.5 MiB in all, and it did not change"


model = Positional()
for _ in range(10):
    y = model(torch.ones(256, 256))
# fix: cast it once, before the loop; in a module, register the result as a buffer, so that `.to()` reaches it
