import torch
from torch import nn


class Gated(nn.Module):
    """Keeps the features that it has learned to keep."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Parameter(torch.full((6,), 0.2))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        keep = torch.sigmoid(self.gates).round().bool()  # expect: DG119 "float32 values of which a gradient is wanted become bool: `Gated.gates` gets no gradient in 2 steps"
        return self.head(x * keep)


torch.manual_seed(0)
model = Gated()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
