import torch

times = torch.linspace(0, 1, 1000, dtype=torch.bfloat16)  # expect: DG108 "`torch.linspace(0, 1, 1000, dtype=torch.bfloat16)`: 1000 points, 504 different ones in bfloat16"
steps = times.diff()
