import torch

torch.manual_seed(0)
users, items = torch.randint(0, 6000, (18000,)), torch.randint(0, 7001, (18000,))
pairs = torch.stack([users, items], dim=1).unique(dim=0)
key = pairs[:, 0].float() * 7001 + pairs[:, 1]  # expect: DG905 "`pairs[:, 0].float() * 7001 + pairs[:, 1]`: <...> of 17997 whole numbers become others in float32, 17997 different ones become <...>: <...> where float64 has <...>; it reaches groups of equal values"
print(len(pairs), len(key.unique()))
# fix: keep positions, counts and ids in integers, or in float64
