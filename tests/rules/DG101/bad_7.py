import torch

phase = torch.polar(torch.ones(8, dtype=torch.float64), torch.arange(8, dtype=torch.float64))
spectrum = torch.fft.fft(torch.rand(8))
turned = spectrum * phase  # expect: DG101 "`spectrum * phase` mixes complex128 and complex64, 128 B"
# fix: convert where the float64 is born: `.to(torch.complex64)`
