import torch

torch.manual_seed(0)
scores = torch.rand(3, 1000)
votes = (scores[0] > 0.5) + (scores[1] > 0.5) + (scores[2] > 0.5)  # expect: DG109 "`(scores[0] > 0.5) + (scores[1] > 0.5) + (scores[2] > 0.5)`: 353 of 1000 sums are of True and True, which is True in bool"
print((votes >= 2).sum().item())
# fix: add integers: `.int()` on the first; of masks write `|`
