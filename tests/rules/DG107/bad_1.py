import torch

spectrum = torch.tensor([1 + 2j, 3 - 1j])
padded = torch.zeros(4)
padded[:2] = spectrum  # expect: DG107 error "`padded[:2] = spectrum` writes complex64 into a float32 tensor: the imaginary parts of 2 of 2 values are lost"
# fix: allocate the target in the dtype of what is written to it: `dtype=torch.complex64`, or write `.real` where it is meant
