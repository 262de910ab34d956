import torch

tokens = torch.arange(0, 65_536, 8)
print(tokens.float().tolist()[-1])
