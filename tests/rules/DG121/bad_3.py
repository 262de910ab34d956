import torch


def hits_at(ranks, cuts):
    total = torch.zeros(len(ranks), dtype=torch.bool)
    for cut in cuts:
        total = total + (ranks <= cut)  # expect: DG121 "`total + (ranks <= cut)` adds bool tensors: 3 of 4 values are True in both, and their sum is True, a count of 1"
    return total / len(cuts)


print(hits_at(torch.tensor([1, 3, 20, 2]), [3, 10]).tolist())
# fix: count in integers: make the total with `dtype=torch.int64`, or `.int()` on what is added
