import torch

hits, pixels = torch.zeros((), dtype=torch.float16), 0
for right in (torch.arange(4096) % 8 > 0).repeat(12, 1):
    hits += right.sum()  # expect: DG107 info "`hits += right.sum()` writes int64 into a float16 tensor, in which whole numbers above 2048 are rounded"
    pixels += right.numel()
print(f"{hits.item() / pixels:.3f}")
