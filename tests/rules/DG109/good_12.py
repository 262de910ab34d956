import torch

torch.manual_seed(0)
one, other = torch.randint(0, 256, (2, 40), dtype=torch.uint8)
total = one + other
print(torch.where(total < one, torch.full_like(total, 255), total).float().mean())
print(torch.where(one > other, one - other, other - one).float().mean())
ids = torch.randint(0, 70_000, (30,), dtype=torch.int32)
print(torch.stack([ids, ids >> 8, ids >> 16], -1).to(torch.uint8).float().mean())
