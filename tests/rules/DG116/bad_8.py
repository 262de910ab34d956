import torch

logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
u = torch.empty_like(logits).uniform_()
gumbel = -torch.log(-torch.log(u.clamp(min=1e-6)))  # expect: DG116 "`torch.log(u.clamp(min=1e-6))` takes uniform numbers that were drawn in bfloat16 at program.py:4, in <module>: about one in some hundred of them is 0, in float32 one in 16 million"
print((logits + gumbel).argmax(-1).tolist())
