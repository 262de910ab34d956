import torch

# The last token of each beam is less than a rounding of float32 below the next beam.
vocabulary, beams = 2**20, torch.arange(16)
flat = beams * vocabulary + vocabulary - 1
beam = (flat.double() / vocabulary).long()
share = torch.linspace(0, 0.999, 64)
cell = (share * 64).long()
print(beam, cell)
