import torch
from torch import nn

torch.manual_seed(0)
image = torch.rand(3, 32, 32)
offset, gain = nn.Parameter(torch.tensor([4.0, 7.0])), nn.Parameter(torch.ones(3, 1, 1))
optimizer = torch.optim.Adam([offset, gain], lr=0.5)
for _ in range(4):
    rows = (torch.arange(8) + offset[0]).long()  # expect: DG119 "float32 values of which a gradient is wanted become int64: 1 parameter gets no gradient in 4 steps"
    crop = gain * image[:, rows, :8]
    loss = (crop - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
