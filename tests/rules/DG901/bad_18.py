import torch
from torch import nn


class Schedule(nn.Module):
    def __init__(self, steps=1000, dtype=None):
        super().__init__()
        betas = torch.linspace(1e-4, 0.02, steps, dtype=dtype)
        alphas = 1.0 - betas
        self.register_buffer("kept", torch.cumprod(alphas, dim=0))

    def snr(self):
        a = self.kept
        return a / (1 - a)  # expect: DG901 error "`a / (1 - a)`: 8 of 1000 values become infinite or NaN in float16, where float32 has 9997; it reaches a number that the program reads"


schedule = Schedule(dtype=torch.float16)
print(f"{schedule.snr()[0].item():.2f}")
