import torch

rows = torch.tensor([10, 70_000], dtype=torch.int32)
columns = torch.tensor([3, 4], dtype=torch.int32)
offsets = rows * 50_000 + columns  # expect: DG109 "`rows * 50_000`: 1 of 2 results are outside of -2147483648 to 2147483647 and wrap around"
