import torch

window = torch.hann_window(8, dtype=torch.float64)
spectrum = torch.fft.fft(torch.rand(8))
windowed = spectrum * window  # expect: DG101 "`spectrum * window` mixes float64 and complex64, 128 B"
# fix: convert where the float64 is born: `torch.hann_window(8, dtype=torch.float64).to(torch.float32)`
