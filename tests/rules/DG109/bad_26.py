import torch

followed = torch.arange(2).repeat_interleave(torch.tensor([300, 20]))
ones = torch.ones(320, dtype=torch.uint8)
degrees = torch.zeros(2, dtype=torch.uint8).scatter_add_(0, followed, ones)  # expect: DG109 "`...scatter_add_(...)`: 1 of 2 results are outside of 0 to 255 and wrap around"
print(degrees)
# fix: create the target with `dtype=torch.int64`, or clamp before the write
