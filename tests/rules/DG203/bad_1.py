import torch
from torch import nn


class Scatter(nn.Module):
    def __init__(self):
        super().__init__()
        self.pfn = nn.Linear(3, 2)

    def forward(self, pillars, index):
        canvas = torch.zeros(6, 2)
        canvas[index] = self.pfn(pillars)  # expect: DG203 "`canvas[index] = self.pfn(pillars)` under autocast was refused: Index put requires the source and destination dtypes match, got Float for the destination and BFloat16 for the source."
        return canvas


with torch.autocast("cpu", dtype=torch.bfloat16):
    Scatter()(torch.randn(3, 3), torch.tensor([0, 2, 5]))
# fix: cast one side: make the target like the values: `values.new_zeros(...)`, or cast: `values.to(target.dtype)`
