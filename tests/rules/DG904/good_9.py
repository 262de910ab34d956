"""A quantile gives a value, whose place among its equals does not matter."""

import torch

scores = (torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 0.01 + 100).half()
print(torch.quantile(scores.float(), 0.5).item())
