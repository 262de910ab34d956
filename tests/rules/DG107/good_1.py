import torch

spectrum = torch.tensor([1 + 2j, 3 - 1j])
padded = torch.zeros(4, dtype=spectrum.dtype)
padded[:2] = spectrum
