import torch

x = torch.zeros(1, 600, 4).bfloat16()
positions = torch.arange(x.shape[1], dtype=x.dtype)  # expect: DG108 "`torch.arange(x.shape[1], dtype=x.dtype)`: 600 distinct integers, 407 in bfloat16: used as angles at program.py:6, in <module>"
angles = positions[:, None] * torch.tensor([1.0, 0.1]).to(x.dtype)
table = angles.cos()
# fix: compute positions and angles in float32 (or as integers), and cast only the result
