import torch

angles = torch.tensor([0.0, 100.0, 200.0]).bfloat16()
waves = angles.sin()  # expect: DG108 "`angles.sin()`: angles up to 200 have a spacing of 1 in bfloat16"
