import torch
from torch import nn

torch.manual_seed(0)
stamps = torch.tensor([1_700_000_000 + 37 * number for number in range(50)], dtype=torch.float32)  # expect: DG905 "`torch.tensor(...)`: 49 of 50 whole numbers become others in float32, 50 different ones become 15: 1700000640 where float64 has 1700000703; it reaches the output of Linear and a number that the program reads"
phase = (stamps % 3600) / 3600
model = nn.Linear(1, 1)
print(model(phase[:, None]).sum().item(), stamps.unique().numel())
