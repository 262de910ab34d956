import torch

x = torch.tensor([[0.0, -0.25], [0.25, 0.0]])
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    print(dtype, torch.linalg.matrix_exp(x.to(dtype)).tolist())
