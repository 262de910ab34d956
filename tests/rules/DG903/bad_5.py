import torch

weight = torch.linspace(-1, 1, 4096).view(64, 64).bfloat16()
update = torch.linspace(1e-4, 2e-4, 64) * torch.ones(64, 1)
weight += update.bfloat16()  # expect: DG903 "`weight += update.bfloat16()`: 3868 of 4096 values stay as they were: 0.9961 where float32 has 0.9982; it reaches the tensor itself"
