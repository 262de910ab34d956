import torch

logits = torch.randn(8, 1000).half()
uniform = torch.rand_like(logits)
gumbel = -torch.log(-torch.log(uniform))  # expect: DG116 "`torch.log(uniform)` takes uniform numbers that were drawn in float16 at program.py:4, in <module>: about one in some thousand of them is 0, in float32 one in 16 million"
sample = (logits + gumbel).argmax(-1)
# fix: draw them in float32: `torch.rand(..., dtype=torch.float32)`, and cast the result
