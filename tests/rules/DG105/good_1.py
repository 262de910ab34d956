import torch

x = torch.full((2, 8), 300.0).half()
wide = x.float()
variance = wide.pow(2).mean(-1, keepdim=True)
y = (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)
