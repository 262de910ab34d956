import torch

steps = torch.tensor([999, 998, 997, 996])
frequencies = torch.tensor([1.0, 0.1])
angles = steps.to(torch.bfloat16).float()[:, None] * frequencies  # expect: DG108 "`steps.to(torch.bfloat16)`: 4 distinct integers, 2 in bfloat16: used as angles at program.py:6, in <module>"
embedding = angles.sin()
