import torch

ids = torch.tensor([12, 34567], dtype=torch.int32)
hashed = ids * -2048144789
hashed = (hashed ^ (hashed >> 13)) * -1028477379
