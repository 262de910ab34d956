import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Sequential(
            nn.Embedding(8, 4),
            nn.Tanh(),
        ).double()

    def forward(self, users):
        return self.user(users)


model, weight = Ranker(), torch.ones(6, 1)
loss = (weight * model(torch.arange(6))).mean()  # expect: DG101 "`weight * model(torch.arange(6))` mixes float64 and float32, 192 B"
loss.backward()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
