import numpy as np
import torch

phase = torch.from_numpy(np.exp(1j * np.arange(8)))
spectrum = torch.fft.fft(torch.rand(8))
turned = spectrum * phase  # expect: DG101 "`spectrum * phase` mixes complex128 and complex64, 128 B"
# fix: convert where the float64 is born: `torch.from_numpy(np.exp(1j * np.arange(8))).to(torch.complex64)`
