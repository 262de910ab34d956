import torch

seconds = torch.tensor([3600.123456, 7200.654321, 36000.1111], dtype=torch.float64)
samples = (seconds.float() * 48000).round().long()  # expect: DG904 "`(seconds.float() * 48000).round().long()`: 3 of 3 come out otherwise than in float64: 172805936 instead of 172805926; rounded in float32: seconds.float() at program.py:4, in <module>"
