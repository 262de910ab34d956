import torch

logits = torch.randn(8, 1000).half()
uniform = torch.rand(8, 1000)
gumbel = -torch.log(-torch.log(uniform))
sample = (logits + gumbel).argmax(-1)
