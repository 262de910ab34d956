import torch
from torch import nn


class Scheduler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, x, t):
        self.alphas = self.alphas.to(x.dtype)  # expect: DG504 "buffer `alphas` of Scheduler was float32 and became bfloat16 in forward"
        return self.alphas[t] * x


scheduler = Scheduler()
noisy = scheduler(torch.ones(3).bfloat16(), 0)
