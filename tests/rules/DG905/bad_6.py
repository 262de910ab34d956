import torch

torch.manual_seed(0)
user, item = torch.randint(90_000, (4000,)), torch.randint(70_000, (4000,))
key = user * 70_000 + item
groups = torch.unique(key.float())  # expect: DG905 "`key.float()`: 3933 of 4000 whole numbers become others in float32, 4000 different ones become 3999: 5574723584 where float64 has 5574723328; it reaches groups of equal values"
print(groups.numel())
