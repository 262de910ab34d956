import torch

torch.manual_seed(0)
likely = torch.empty(64, 64, dtype=torch.bfloat16).uniform_(-0.95, 0.95).erfinv_()
kept = torch.rand(64, 64, dtype=torch.bfloat16) > 0.1
wide = torch.empty(64, 64).uniform_(-1, 1).erfinv_().bfloat16()
