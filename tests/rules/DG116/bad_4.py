import torch

torch.manual_seed(0)
rows, dropout = torch.randn(4, 4096, 1).bfloat16(), 0.0
kept = torch.rand_like(rows) > dropout  # expect: DG116 "`torch.rand_like(rows) > dropout` takes uniform numbers that were drawn in bfloat16 at program.py:5, in <module>: about one in some hundred of them is 0, in float32 one in 16 million"
print((rows * kept / (1 - dropout)).sum().item())
