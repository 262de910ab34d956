import torch

torch.manual_seed(0)
rates = []
for average in torch.rand(64):
    rate = (average / 0.001).mul_(0.9).sqrt_().add_(1e-8)
    rates.append(1 / rate)
print(torch.stack(rates).tolist()[:3])
