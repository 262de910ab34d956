import torch

tokens = torch.arange(16_777_200, 16_777_264)
table = tokens.float()  # expect: DG905 "`tokens.float()`: 24 of 64 whole numbers become others in float32, 64 different ones become 41: 16777216 where float64 has 16777217; it reaches values that the program reads"
print(table.tolist()[:4])
