import torch

values = torch.tensor([1e6, -1e6, 1.0])
limit = torch.finfo(torch.float16).max
x = values.clamp(-limit, limit).half()
