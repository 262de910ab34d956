"""DG101 float64-creep."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG101",
    "float64-creep",
    Severity.WARNING,
    summary="A float64 operand makes everything that it meets float64, or a layer refuses it.",
    says="`{what}` {how} float64 and {other}{size}",
    fix="convert where the float64 is born: {where}`.to({like})`",
    why=(
        "NumPy and Python compute in float64, models in float32 or less. One float64 operand makes every "
        "result float64: twice the memory and a fraction of the speed on a GPU, nothing at all on MPS; a "
        "layer refuses it."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/pytorch/pytorch/issues/36553",
        "https://github.com/sgl-project/sglang/issues/29011",
    ),
)


BAD = [
    Program(
        """\
import numpy as np
import torch

images = torch.rand(2, 3, 4, 4)
mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
images = images - mean[:, None, None]
""",
        at=6,
        prints="`images - mean[:, None, None]` mixes float64 and float32, 768 B",
    ),
    Program(
        """\
import numpy as np
import torch


class Schedule:
    def __init__(self):
        self.sigmas = torch.from_numpy(np.linspace(1.0, 0.0, 10))

    def add_noise(self, latents, noise, step):
        sigma = self.sigmas[step][:, None]
        return latents + sigma * noise


latents, noise = torch.randn(2, 3).half(), torch.randn(2, 3).half()
latents = Schedule().add_noise(latents, noise, torch.tensor([1, 5]))
""",
        at=11,
        prints="`sigma * noise` mixes float64 and float16, 48 B",
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        angles = np.arange(16)[:, None] / 10000 ** (np.arange(8) / 8)
        self.table = torch.from_numpy(np.sin(angles))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


y = Encoding()(torch.randn(2, 5, 8))
""",
        at=13,
        prints="`x + self.table[: x.shape[1]]` mixes float64 and float32, 640 B",
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn

rows = np.ones((3, 4))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model(torch.from_numpy(rows))
""",
        at=7,
        prints="`model(torch.from_numpy(rows))` was refused: it mixes float64 and float32",
        severity=Severity.ERROR,
    ),
]
GOOD = [
    Program(
        """\
import numpy as np
import torch

images = torch.rand(2, 3, 4, 4)
mean = torch.from_numpy(np.array([0.485, 0.456, 0.406])).to(torch.float32)
images = images - mean[:, None, None]
"""
    ),
    Program(
        """\
import torch

total = torch.zeros((), dtype=torch.float64)
for step in range(4):
    loss = torch.randn(8).square().mean()
    total += loss
average = total.item() / 4
"""
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn

rows = torch.from_numpy(np.ones((3, 4)))
model = nn.Linear(4, 1).double()
loss = (model(rows) - torch.ones(3, 1, dtype=torch.float64)).square().mean()
loss.backward()
"""
    ),
    Program(
        """\
import numpy as np
import torch

x = torch.randn(4)
y = x * np.float64(0.5) / np.sqrt(8.0)
z = y + torch.tensor(2.0, dtype=torch.float64)
"""
    ),
]
