import torch
from torch import nn

torch.manual_seed(0)
place = torch.rand(400, 2) * 80
height = 3 + (place[:, :1] * 0.05).sin() + 0.02 * torch.randn(400, 1)
wave = place @ (torch.randn(2, 16) * 0.06)
basis = torch.cat([wave.sin(), wave.cos()], 1)
target = height - height.mean()
weight = torch.zeros(32, 1, requires_grad=True)
optimizer = torch.optim.LBFGS([weight], max_iter=20, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = nn.functional.huber_loss(basis @ weight, target, delta=0.1) + 1e-6 * weight.square().sum()
    loss.backward()
    return loss


for _ in range(4):
    loss = optimizer.step(closure)
print(loss.item())
