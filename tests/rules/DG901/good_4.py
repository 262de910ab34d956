import torch

x = torch.zeros(4, 3, requires_grad=True)
x.norm(dim=-1).sum().backward()
print(x.grad.sum().item())
