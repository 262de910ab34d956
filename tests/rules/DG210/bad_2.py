import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
criterion = nn.MSELoss(reduction="none")
x, target = torch.randn(32, 8), torch.randn(32, 1)
weights = torch.rand(32, 1)
errors = criterion(forward(x), target.bfloat16())  # expect: DG210 "`criterion(forward(x), target.bfloat16())` gets bfloat16, which left an autocast region at program.py:10, in <module>: the loss is bfloat16, in the region float32"
(errors.float() * weights).mean().backward()
# fix: compute the loss inside the region, or from `.float()` of what leaves it
