import torch

torch.manual_seed(0)
weights = torch.empty(64, 64, dtype=torch.bfloat16)
weights.uniform_(-1, 1)
weights.erfinv_()  # expect: DG116 "`weights.erfinv_()` takes uniform numbers that were drawn in bfloat16 at program.py:5, in <module>: about one in some hundred of them lies at the end of their range, in float32 one in 16 million"
weights.mul_(0.02).clamp_(-2, 2)
