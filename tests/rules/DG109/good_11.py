import torch

torch.manual_seed(0)
scores = torch.rand(3, 1000)
kept = (scores[0] > 0.5) + (scores[1] > 0.5)
print((scores[2] * kept).sum().item(), (kept == 1).sum().item(), kept.float().mean().item() > 2)
