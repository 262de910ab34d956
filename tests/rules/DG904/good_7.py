import torch

torch.manual_seed(0)
scores = torch.rand(1000).to(torch.bfloat16)
print(torch.sort(scores).values[500].item())
