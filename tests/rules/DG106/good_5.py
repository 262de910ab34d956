import torch

torch.manual_seed(0)
x, q = torch.randn(10, 3), torch.linspace(0.01, 0.09, 9)
print(x.quantile(q, 0, interpolation="lower").sum().item(), x.nanquantile(q, 0, interpolation="nearest").sum().item())
