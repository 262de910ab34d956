import torch
from torch_geometric.nn import StdAggregation

torch.manual_seed(0)
x, batch = torch.randint(18, 23, (300, 16)), torch.arange(300) // 100
for dtype in (torch.float32, torch.bfloat16):
    print(dtype, StdAggregation()(x.to(dtype), batch).mean().item())
