"""Beside a larger number nothing is ranked that is masked, and in float32 a score keeps its digits."""

import torch

generator = torch.Generator().manual_seed(0)
score = torch.rand(600, generator=generator).bfloat16()
masked = (score + torch.where(torch.rand(600, generator=generator) < 0.5, 0.0, -1e9).bfloat16()).argsort(descending=True)
group = torch.arange(600) // 20 * 10.0
grouped = (group + score.float()).argsort()
print(masked[0].item(), grouped[0].item())
