import torch

x = torch.randn(2, 2).half()
mask = torch.full((2, 2), -1e5, dtype=x.dtype)  # expect: DG206 "`torch.full((2, 2), -1e5, dtype=x.dtype)` was refused: value cannot be converted to type c10::Half without overflow"
