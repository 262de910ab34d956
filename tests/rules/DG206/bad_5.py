import torch

image = torch.zeros(3, 4, 4, dtype=torch.uint8)
image[:, 0].fill_(255)
image[:, 1].fill_(256)  # expect: DG206 "`image[:, 1].fill_(256)` was refused: value cannot be converted to type uint8_t without overflow"
