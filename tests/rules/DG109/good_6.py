import torch

ids = torch.arange(1000, dtype=torch.int32)
buckets = (ids * 73856093) % 1009  # of a hash, whose factor is larger than what it is taken modulo
state = torch.tensor([42, 2024, 777], dtype=torch.int32)
for _ in range(8):
    state = (state.long() * 16807 % (2**31 - 1)).int()
masks = torch.ones(31, dtype=torch.int32) << torch.arange(31)
