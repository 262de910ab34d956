import math

import torch

seconds = torch.arange(16000) / 8000
sound = 0.4 * torch.sin(2 * math.pi * 440 * seconds) + 0.1 * torch.sin(2 * math.pi * 1500 * seconds)
samples = (sound * 32767).round().to(torch.int16)
print(samples.float().abs().mean())
