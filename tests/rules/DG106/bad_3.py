import torch

counts = torch.tensor([0, 2, 0])
smoothed = counts.masked_fill(counts == 0, 0.5)  # expect: DG106 "`counts.masked_fill(counts == 0, 0.5)` writes 0.5 into int64: it becomes 0"
