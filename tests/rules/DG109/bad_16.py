import torch

positions = torch.arange(400).to(torch.uint8)  # expect: DG109 "`torch.arange(400).to(torch.uint8)`: 144 of 400 values are outside of 0 to 255 and wrap around"
# fix: cast to a dtype that has them all, as ids and positions need: `.to(torch.int64)`
