import torch


def counts(places, ones):
    seen = torch.sparse_coo_tensor(places, ones, (3, 3), check_invariants=True)
    return seen.coalesce().to_dense()  # expect: DG109 "`seen.coalesce()`: 1 of 2 results are outside of -128 to 127 and wrap around"


print(counts(torch.tensor([[0, 1, 0], [2, 2, 2]]), torch.tensor([100, 1, 100], dtype=torch.int8)).sum())
