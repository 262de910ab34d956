import torch

target = torch.cat([torch.zeros(3000), torch.arange(400.0)]).long()
degree = torch.zeros(400, dtype=torch.bfloat16)
degree.index_add_(0, target, torch.ones(3400, dtype=torch.bfloat16))  # expect: DG902 "`degree.index_add_(...)`: an error of 0.39 % comes in, more than 1000 % goes out: 256 where float32 has 3001; it reaches a number that the program reads"
scale = degree.pow(-0.5)
pooled = torch.zeros(400).index_add_(0, target, scale[target].float())
print(pooled.sum().item())
