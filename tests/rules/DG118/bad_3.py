import torch

weights = torch.tensor([0.5, -1.25, 3.0], dtype=torch.float16)
print(torch.Tensor.view(weights, torch.bfloat16) * 2)  # expect: DG118 "`torch.Tensor.view(weights, torch.bfloat16)` reads the bits of float16 as bfloat16: 3 becomes 32"
