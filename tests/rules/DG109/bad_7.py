import torch

rows = torch.tensor([2**33, 2**34 - 1])
columns = torch.tensor([5, 7])
keys = rows * 2**34 + columns  # expect: DG109 "`rows * 2**34`: 2 of 2 results are outside of -2**63 to 2**63 - 1 and wrap around"
order = keys.argsort()
