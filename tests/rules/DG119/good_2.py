import torch
from torch import nn

torch.manual_seed(0)
body, probe = nn.Linear(6, 4), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*body.parameters(), *probe.parameters()])
hits = 0
for epoch in range(4):
    x = torch.randn(8, 6)
    hidden = body(x)
    guess = torch.sigmoid(probe(hidden)).round().long()
    hits += int((guess[:, 0] == (x[:, 0] > 0)).sum())
    loss = hidden.square().mean()  # the probe is only looked at
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(hits)
