import torch

p = torch.tensor([0.5, float("nan"), -1.0]).half()
entropy = (p + 1e-8).log()  # expect: DG113 info "`p + 1e-8`: 1e-08 is 0 in float16; in this run `(p + 1e-8).log()` did not need it, as nothing was 0"
