import torch

below = torch.full((256,), 65_536).cumsum(0).to(torch.int32)
table = below * 255 // below[-1]  # expect: DG109 "`below * 255`: 128 of 256 results are outside of -2147483648 to 2147483647 and wrap around"
print(table.clamp(0, 255).to(torch.uint8)[::32].tolist())
# fix: take a wider dtype: `.long()` first
