import torch

z = torch.arange(8) * -7046029254386353131
z = (z ^ (z >> 30)) * -4658895280553007687
uniform = ((z ^ (z >> 31)) >> 11).double() * 2**-53
state = torch.tensor([12345])
for _ in range(8):
    state = (state * 1103515245 + 12345) % 2**31
buckets = (torch.tensor([2**40, 2**50]) * 2_862_933_555_777 + 1) % 1024
largest = torch.full((4,), torch.iinfo(torch.int64).max) - 1
