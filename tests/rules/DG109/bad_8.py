import torch

counts = torch.zeros(2, dtype=torch.int32)
for pixels in [torch.tensor([14_000_000, 200_000])] * 200:
    counts += pixels  # expect: DG109 "`counts += pixels`: 1 of 2 results are outside of -2147483648 to 2147483647 and wrap around"
share = counts / counts.sum()
