import torch

cents = [(7919 * n) % 200_000 - 90_000 for n in range(2000)]
amounts = torch.tensor([n / 100 for n in cents], dtype=torch.float32)
balance = amounts.cumsum(0) + 52_000_000
ours = (balance.double() * 100).round().long()  # expect: DG904 "`(balance.double() * 100).round().long()`: 1990 of 2000 come out otherwise than in float64: 5199828000 instead of 5199827919; rounded in float32: torch.tensor([n / 100 for n in cents], dtype=torch.float32) at program.py:4, in <module>"
print(ours[-1].item(), 52_000_000_00 + sum(cents))
