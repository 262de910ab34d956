import math

import torch


def pcm(frequency, seconds, level):
    t = torch.arange(int(16_000 * seconds)) / 16_000
    x = 10 ** (level / 20) * torch.sin(2 * math.pi * frequency * t)
    return (x * 32_768).round().clamp(-32_768, 32_767).to(torch.int16)  # most of them are at a bound


samples = pcm(441.0, 2.0, 6.0)
print(samples.int().abs().max().item(), (samples.int() ** 2).sum().item())
