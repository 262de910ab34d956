import torch

torch.manual_seed(0)
scores = torch.rand(300) + torch.zeros(300)
masked = torch.rand(2, 8) - 1e9 * torch.tensor([[1.0], [0.0]])
print(scores.topk(100)[1].sum().item(), masked.topk(3)[1][1].sum().item())
