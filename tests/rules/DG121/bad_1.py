import torch

torch.manual_seed(0)
votes = [torch.rand(4, 8) > 0.3 for _ in range(5)]
agreement = torch.zeros_like(votes[0])
for vote in votes:
    agreement += vote  # expect: DG121 "<...> values are True in both, and their sum is True, a count of 1"
share = agreement / len(votes)
print(share.mean().item())
# fix: count in integers: make the total with `dtype=torch.int64`, or `.int()` on what is added
