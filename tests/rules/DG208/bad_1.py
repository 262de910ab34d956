import torch
from torch import nn

model, x = nn.Linear(4, 4), torch.ones(2, 4)
reference = torch.zeros(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    policy = model(x)
    model.weight.data.copy_(reference)
    with torch.no_grad():
        other = model(x)  # expect: DG208 "`weight` of Linear has changed since autocast made its bfloat16 copy, and the copy is used"
# fix: enter a region for each forward, or call `torch.clear_autocast_cache()` when the weights have changed
