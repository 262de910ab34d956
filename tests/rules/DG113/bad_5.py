import torch

x = torch.tensor([1.0, 2.0]).half()
y = x / (x.sum() + 1e-8)  # expect: DG113 info "`x.sum() + 1e-8`: 1e-08 is 0 in float16; in this run `x / (x.sum() + 1e-8)` did not need it, as nothing was 0"
