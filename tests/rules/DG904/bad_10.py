import torch

boundaries = torch.arange(1 / 70, 1.0, 1 / 70)
places = torch.arange(70, dtype=torch.bfloat16) / 70
found = torch.bucketize(places * (1 - 1e-6), boundaries, right=True)  # expect: DG904 "`torch.bucketize(places * (1 - 1e-6), boundaries, right=True)`: 35 of 70 come out otherwise than in float32: 3 instead of 2; rounded in bfloat16: torch.arange(70, dtype=torch.bfloat16) / 70 at program.py:4, in <module>"
print(len(found.unique()))
