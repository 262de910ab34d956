import torch
from torch import nn

import dtypeguard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)

    @torch.autocast("cpu", dtype=torch.float16)
    def forward(self, x):
        return self.head(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters())
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(4, 3)).float().mean().backward()
optimizer.step()  # expect: DG305 "the model ran under float16 autocast, and AdamW stepped without a GradScaler"
