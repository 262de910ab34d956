import torch

times = torch.tensor([1.7e9 + 37 * number for number in range(50)])  # expect: DG905 "`torch.tensor([1.7e9 + 37 * number for number in range(50)])`: 49 of 50 whole numbers become others in float32, 50 different ones become 15: 1700000640 where float64 has 1700000703; it reaches a number that the program reads"
day = (times % 86400) / 86400
print(round(day.mean().item(), 3))
