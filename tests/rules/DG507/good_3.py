import torch
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.ones(4, 8)
for epoch in range(3):
    model(x).square().mean().backward()
    optimizer.step()
model.half()  # once, when all is learned
print(model(x.half()).float().mean().item())
