import torch
from torch import nn

model, x = nn.Linear(4, 4), torch.ones(2, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    once = model(model(x))
    model.weight.data.copy_(torch.zeros(4, 4))
    torch.clear_autocast_cache()
    again = model(x)
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    first = model(x)
    model.weight.data.copy_(torch.ones(4, 4))
    second = model(x)
