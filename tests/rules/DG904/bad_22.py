import torch

torch.manual_seed(0)
entities = torch.randn(500, 64) * 0.1
queries = torch.randn(50, 64) * 0.1
gold = torch.randint(0, 500, (50, 1))
scores = (24 - (queries[:, None] - entities).abs().sum(-1)).bfloat16()
ranks = (scores > scores.gather(1, gold)).sum(1) + 1  # expect: DG904 "`scores > scores.gather(1, gold)`: 48 of 50 ranks are others than in float32: 133 instead of 169; rounded in bfloat16: ...bfloat16(...) at program.py:7, in <module>"
print(ranks.float().mean().item())
# fix: compute what is compared in float32
