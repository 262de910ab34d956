import torch

# Complex numbers, and their parts.
signal = torch.randn(8, 2)
print(torch.view_as_complex(signal).abs().sum(), torch.view_as_real(torch.view_as_complex(signal)).sum())
