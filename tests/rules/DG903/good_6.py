import torch
from torch import nn

# The float32 copies are kept from step to step.
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
data = torch.randn(64, 16)
masters = [parameter.detach().float() for parameter in net.parameters()]
for step in range(100):
    loss = (net(data.bfloat16()).float() - data[:, :1]).square().mean()
    net.zero_grad()
    loss.backward()
    for parameter, master in zip(net.parameters(), masters, strict=True):
        master -= 1e-3 * parameter.grad.float()
        parameter.data.copy_(master)
print(loss.item())
