import torch

ids = torch.tensor([123456789, 123456790, 123456805])
keys = ids.float()  # expect: DG905 warning "`ids.float()`: 3 of 3 whole numbers become others in float32, 3 different ones become 2: 123456792 where float64 has 123456789; it reaches a comparison"
print(bool(keys[0] == keys[1]))
