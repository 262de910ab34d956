import torch

p = torch.tensor([0.5, 0.5, 0.0]).half()
entropy = -(p * (p + 1e-8).log()).sum()  # expect: DG113 "`p + 1e-8`: 1e-08 is 0 in float16, and `(p + 1e-8).log()` gives 1 infinite or NaN values"
