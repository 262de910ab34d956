import torch

counts = torch.zeros(3)
events = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([1_000_000, 30_000, 1_000]))
for _ in range(24):
    counts.scatter_add_(0, events, torch.ones(len(events)))  # expect: DG902 "`counts.scatter_add_(0, events, torch.ones(len(events)))`: an error of 6e-06 % comes in, 47 % goes out: 16777216 where float64 has 23000000; it reaches values that the program reads"
print(counts)
# fix: keep it in float64: what each round of a loop rounds away builds up
