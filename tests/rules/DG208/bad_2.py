import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).float().square().mean()  # expect: DG208 "`weight` of Linear has changed since autocast made its bfloat16 copy, and the copy is used"
        loss.backward()
        optimizer.step()
