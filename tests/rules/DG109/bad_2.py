import torch

image = torch.tensor([[10, 200]], dtype=torch.uint8)
image += 100  # expect: DG109 "`image += 100`: 1 of 2 results are outside of 0 to 255 and wrap around"
