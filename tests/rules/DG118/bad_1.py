import torch

torch.manual_seed(0)
keys = torch.randn(4, 8).bfloat16()
cache = torch.zeros(16, 8, dtype=torch.float16)
cache[:4] = keys.view(cache.dtype)  # expect: DG118 "`keys.view(cache.dtype)` reads the bits of bfloat16 as float16: -2.10938 becomes -2.01367"
print(cache[:4].float().norm() / keys.float().norm())
# fix: convert the values, `.to(torch.float16)`; to carry bits, view them as integers: `.view(torch.int16)`
