import torch

weights = torch.randn(64).bfloat16()
scale = weights.abs().max() / 127
whole = (weights / scale).round().clamp(-128, 127).to(torch.int8)  # off by one step here and there
beam = torch.arange(2**25, 2**25 + 8) // 256_206
table = torch.linspace(1, 1000, 1000).flip(0) / 1000 * 1000
nearest = (table - 254).abs().argmin()
largest = table == table.max()
same = table.half().float() == table  # which of them half precision has
