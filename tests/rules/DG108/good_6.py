import torch

times = torch.linspace(0, 1, 1000).diff().bfloat16()
few, same = torch.linspace(-1, 1, 33, dtype=torch.bfloat16), torch.linspace(2, 2, 9, dtype=torch.float16)
