import torch

start = 2**24
ids = torch.arange(start, start + 100, dtype=torch.float32)  # expect: DG108 "`torch.arange(start, start + 100, dtype=torch.float32)`: integers up to 16777316, of which those above 2**24 are not all there in float32: used as integers at program.py:5, in <module>"
print(torch.unique(ids.long()).numel())
