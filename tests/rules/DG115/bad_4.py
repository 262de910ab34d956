import torch

betas = torch.tensor([0.9, 0.9999], dtype=torch.float16)  # expect: DG115 info "`torch.tensor([0.9, 0.9999], dtype=torch.float16)`: 0.9999 becomes 1 in float16"
