import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return self.norms(x)


net = Net().bfloat16().eval()  # expect: DG501 "buffers `norms.0.running_mean`, `norms.0.running_var`, `norms.2.running_mean` and 1 more of Net: converted from float32 to bfloat16"
out = net(torch.ones(3, 4).bfloat16())
# fix: keep the modules in float32: in place of the line, `net = Net()`, `kept = {name: one for name, one in net.named_modules() if isinstance(one, torch.nn.BatchNorm1d)}`, `for name in kept: net.set_submodule(name, torch.nn.Identity())`, `net.bfloat16()`, `for name, one in kept.items(): net.set_submodule(name, one)` and `net = net.eval()`
