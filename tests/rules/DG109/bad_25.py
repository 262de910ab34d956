import torch

torch.manual_seed(0)
votes = [torch.rand(4, 8) > 0.3 for _ in range(5)]
agreement = torch.zeros_like(votes[0])
for vote in votes:
    agreement += vote  # expect: DG109 "`agreement += vote`: 21 of 32 sums are of True and True, which is True in bool"
share = agreement / len(votes)
print(share.mean().item())
# fix: create the target with `dtype=torch.int64`; of masks write `|=`
