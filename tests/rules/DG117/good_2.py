import torch

# Which values are whole numbers?
values = torch.arange(32) / 4 + 0.1
print((values == values.long()).sum(), (values.floor().int() != values).sum())
