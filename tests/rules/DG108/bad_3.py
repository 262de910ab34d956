import torch
import torch.nn.functional as F

ids = torch.tensor([5, 30001, 30002, 11])
batch = ids.bfloat16()  # expect: DG108 "`ids.bfloat16()`: 4 distinct integers, 3 in bfloat16: used as integers at program.py:6, in <module>"
rows = F.embedding(batch.long(), torch.ones(40_000, 2))
