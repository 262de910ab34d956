import math

import torch

rate, size = 8000, 256
seconds = torch.arange(16000) / rate
sound = 0.4 * torch.sin(2 * math.pi * 440 * seconds)
sound[6000:9000] = 0.0
frames = sound.unfold(0, size, size // 2) * torch.hann_window(size)
power = torch.fft.rfft(frames).abs() ** 2


def logarithm(power):
    spectrum = power.clamp(min=1e-10).log10()  # expect: DG901 info "`power.clamp(min=1e-10).log10()`: <...> of 15996 values become infinite or NaN in float16, where float32 has -7.587"
    return torch.maximum(spectrum, spectrum.max() - 6.0)  # takes the infinities back


half, exact = logarithm(power.half()), logarithm(power.double())
loud = exact > exact.max() - 1
print(f"{(half.double() - exact)[loud].abs().max():.4f}")
# fix: 1e-10 is 0 in float16: use an eps that float16 has, 1e-4 and up, or compute it in float32
