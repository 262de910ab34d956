import torch

target = torch.linspace(0.1, 1, 64)
weight = torch.zeros(64, requires_grad=True)
for _ in range(200):
    loss = (weight.bfloat16() - target.bfloat16()).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    weight = (weight - 16 * gradient).detach().requires_grad_()
print(loss.item())
