import torch

# A pool of memory: what is in it is of no dtype yet.
pool = torch.zeros(64, dtype=torch.float16)
taken = pool[:16].view(torch.bfloat16).copy_(torch.randn(16))
print(taken.float().norm() > 0, pool.view(32, 2).shape)
