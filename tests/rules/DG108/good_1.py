import torch

x = torch.zeros(1, 600, 4).bfloat16()
positions = torch.arange(x.shape[1], dtype=torch.float32)
angles = positions[:, None] * torch.tensor([1.0, 0.1])
table = angles.cos().to(x.dtype)
