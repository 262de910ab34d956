"""What is trained is no mask: connections of streams that begin as the identity."""

import torch
from torch import nn

static = nn.Parameter(torch.eye(4))
dynamic = torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(0))
mix = (dynamic + static).softmax(dim=-2)
mix.square().sum().backward()
print(static.grad.shape)
