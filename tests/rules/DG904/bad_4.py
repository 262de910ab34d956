import torch

vocabulary, beams = 256_206, torch.arange(128)
flat = beams * vocabulary + vocabulary - 1
beam = (flat / vocabulary).long()  # expect: DG904 "`(flat / vocabulary).long()`: 32 of 128 come out otherwise than in float64: 66 instead of 65; rounded in float32: flat / vocabulary at program.py:5, in <module>"
