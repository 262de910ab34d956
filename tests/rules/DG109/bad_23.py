import torch

torch.manual_seed(0)
table = torch.randn(5, 4 * 100)
codes = torch.randint(64, (30, 4), dtype=torch.uint8)
scores = torch.zeros(5, 30)
for part in range(4):
    scores += table[:, (codes[:, part] + part * 100).long()]  # expect: DG109 "`codes[:, part] + part * 100`: 5 of 30 results are outside of 0 to 255 and wrap around"
print(scores.topk(3).indices)
# fix: take a wider dtype: `.int()` or `.float()` first
