import torch
from torch import nn

model = nn.Linear(8, 8)
master = [parameter.detach().clone() for parameter in model.parameters()]
x = torch.ones(4, 8)
for step in range(3):
    model.half()
    with torch.no_grad():
        print(model(x.half()).float().mean().item())
    model.float()
    with torch.no_grad():
        for parameter, kept in zip(model.parameters(), master, strict=True):
            kept.mul_(0.99)
            parameter.data = kept.clone()
