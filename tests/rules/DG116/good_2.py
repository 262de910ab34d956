import torch

kept = torch.rand(1000, dtype=torch.float16) < 0.9
likely = torch.randn(8, 10).half().softmax(-1).log()
