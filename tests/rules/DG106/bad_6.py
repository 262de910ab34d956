import torch

image = torch.full((3, 2, 2), 0.3)
canvas = torch.zeros(3, 2, 4, dtype=torch.uint8)
canvas[:, :, :2] = image * 255  # expect: DG106 info "`canvas[:, :, :2] = image * 255` writes float32 values into uint8: 12 of 12 lose their fraction"
