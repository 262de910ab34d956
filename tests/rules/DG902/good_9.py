import torch

torch.manual_seed(0)
weights = torch.rand(64, dtype=torch.float64)
lost = weights - weights.float().double()
halves = weights.bfloat16()
print(lost.abs().max().item(), (weights.float() - halves.float()).abs().max().item(), (halves - halves[0]).tolist()[:3])
