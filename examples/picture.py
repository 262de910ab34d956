"""A small network learns a picture: what does bfloat16 cost it, and which layer must stay in float32?

Run it with `python examples/picture.py`. It takes a few seconds.
"""

import torch
from torch import nn

import dtypeguard


class Picture(nn.Module):
    """The brightness at points of a picture."""

    def __init__(self):
        super().__init__()
        self.waves = nn.Linear(2, 64)
        nn.init.normal_(self.waves.weight, std=20.0)
        self.hidden = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.head = nn.Linear(64, 1)

    def forward(self, points):
        angles = self.waves(points)
        return self.head(self.hidden(angles.sin()))


def brightness(points):
    x, y = points.unbind(-1)
    return ((20 * (x - y)).sin() + (12 * x).sin() * (9 * x * y).cos())[:, None]


def make_model():
    torch.manual_seed(0)
    model = Picture()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(100):
        points = torch.rand(256, 2)
        nn.functional.mse_loss(model(points), brightness(points)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def make_batch():
    return torch.rand(2048, 2, generator=torch.Generator().manual_seed(1))


if __name__ == "__main__":
    result = dtypeguard.compare(make_model(), make_batch(), dtype=torch.bfloat16)
    result.keep(error=0.01)
    print(result)
