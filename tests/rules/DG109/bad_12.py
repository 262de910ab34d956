import torch

pred = torch.ones(300, 300, dtype=torch.bool)
pixels = pred.sum().to(torch.int16)  # expect: DG109 "`pred.sum().to(torch.int16)`: 1 of 1 values are outside of -32768 to 32767 and wrap around"
