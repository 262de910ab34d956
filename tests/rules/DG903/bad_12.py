import torch
from torch import nn

# The float32 copies are made anew from the rounded parameters, in each step.
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
data = torch.randn(64, 16)
for step in range(100):
    loss = (net(data.bfloat16()).float() - data[:, :1]).square().mean()
    net.zero_grad()
    loss.backward()
    for parameter in net.parameters():
        master = parameter.detach().float() - 1e-4 * parameter.grad.float()
        parameter.data.copy_(master)  # expect: DG903 "`parameter.data.copy_(master)`: 2 of the 4 parameters that it updates stand still: -0.05933 where float32 has -0.0526; it reaches a loss and the output of Sequential"
print(loss.item())
# fix: keep a float32 copy of the parameters between steps, and update that
