import torch

picture = torch.tensor([-0.02, 0.5, 1.01])
pixels = (picture * 255).to(torch.uint8)  # expect: DG109 "`(picture * 255).to(torch.uint8)`: 2 of 3 values are outside of 0 to 255 and wrap around"
