import torch

torch.set_default_dtype(torch.bfloat16)
position = torch.arange(0.0, 700)  # expect: DG905 "`torch.arange(0.0, 700)`: 269 of 700 whole numbers become others in bfloat16, 700 different ones become 432: 512 where float32 has 514; it reaches a number that the program reads"
torch.set_default_dtype(torch.float32)
table = (position * torch.tensor(0.1)).sin()
print(round(table.sum().item(), 3))
