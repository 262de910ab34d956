import torch

betas = torch.full((3,), 0.9999, dtype=torch.float16)  # expect: DG115 "`torch.full((3,), 0.9999, dtype=torch.float16)`: 0.9999 becomes 1 in float16"
moment = betas * torch.ones(3)
