import torch

torch.manual_seed(0)
votes = [torch.rand(4, 8) > 0.3 for _ in range(5)]
agreement = torch.zeros_like(votes[0], dtype=torch.int64)
for vote in votes:
    agreement += vote
print((agreement / len(votes)).mean().item())
