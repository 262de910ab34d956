import torch

rows = torch.tensor([2**33, 2**34, 2**35])
key = rows * 2**32 + rows  # expect: DG109 "`rows * 2**32`: 3 of 3 results are outside of -2**63 to 2**63 - 1 and wrap around"
later = (key[1:] > key[:-1]) & (rows[1:] > 0)  # takes no bits of the key
print(key.argsort().tolist(), later.tolist())
