import torch
from torch import nn

torch.manual_seed(0)
codes, decoder = nn.Parameter(torch.randn(5, 4)), nn.Linear(4, 4)
optimizer = torch.optim.Adam([codes, *decoder.parameters()])
for _ in range(3):
    x = torch.randn(8, 4)
    nearest = torch.cdist(x, codes).round().to(torch.int16).argmin(1)
    out = decoder(codes[nearest])
    optimizer.zero_grad()
    (out - x).square().mean().backward()
    optimizer.step()
