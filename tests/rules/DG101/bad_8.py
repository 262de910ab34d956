import numpy as np
import torch

window = torch.from_numpy(np.hanning(8))
spectrum = torch.fft.fft(torch.rand(8))
windowed = spectrum * window  # expect: DG101 "`spectrum * window` mixes float64 and complex64, 128 B"
# fix: convert where the float64 is born: `torch.from_numpy(np.hanning(8)).to(torch.float32)`
