import torch

codes = (torch.linspace(-1, 1, 100) * 127).round().to(torch.uint8)  # expect: DG109 "`(torch.linspace(-1, 1, 100) * 127).round().to(torch.uint8)`: 50 of 100 values are outside of 0 to 255 and wrap around"
# fix: cast to the dtype that has them all: `.to(torch.int8)`
