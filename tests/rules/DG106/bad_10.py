import torch

# The scales of a block format are powers of two; checkpoints store their bits.
scale = torch.exp2(torch.arange(-8.0, 8.0)).to(torch.float8_e8m0fnu)
stored = torch.zeros(16, dtype=torch.uint8)
stored.copy_(scale)  # expect: DG106 "`stored.copy_(scale)` writes float8_e8m0fnu values into uint8: 8 of 16 lose their fraction"
print(torch.exp2(stored.float() - 127).sum().item())
