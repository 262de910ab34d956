import torch

base = 128 ** torch.arange(9, -1, -1)  # expect: DG109 "`128 ** torch.arange(9, -1, -1)`: 1 of 10 results are outside of -2**63 to 2**63 - 1 and wrap around"
