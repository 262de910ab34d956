import torch

gap = torch.tensor([1.0, float("nan"), 2.0]).half()
gap /= gap.abs() + 1e-8  # expect: DG113 info "`gap.abs() + 1e-8`: 1e-08 is 0 in float16; in this run `gap /= gap.abs() + 1e-8` did not need it, as nothing was 0"
