import torch

spectrum = torch.tensor([1 + 2j, 3 - 1j])
padded = torch.zeros(4)
padded[:2] = spectrum.real
