import torch

generator = torch.Generator().manual_seed(0)
codes = torch.randint(-127, 128, (20_000, 32), generator=generator, dtype=torch.int8)
queries = torch.randint(-127, 128, (100, 32), generator=generator, dtype=torch.int8)
scores = torch.einsum('nd,bd->bn', codes, queries)  # expect: DG109 "`torch.einsum('nd,bd->bn', codes, queries)`: about <...> of 2000000 results are outside of -128 to 127 and wrap around"
print(scores.topk(10).indices.sum().item())
# fix: take a wider dtype: `.int()` or `.float()` first
