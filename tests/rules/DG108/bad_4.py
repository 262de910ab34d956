import torch

mask = torch.ones(1, 3000).half()
positions = (mask.cumsum(-1) - 1).long()  # expect: DG108 "`mask.cumsum(-1)`: 3000 distinct integers, 2524 in float16: used as integers at program.py:4, in <module>"
