"""DG104 repeated-cast."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG104",
    "repeated-cast",
    Severity.WARNING,
    summary="The same tensor is cast again and again, with the same result each time.",
    says=("the same {was} tensor of {size} was cast to {dtype} {times} times, {total} in all, and it did not change"),
    fix="cast it once, before the loop, or register it as a buffer of the module so that `.to()` reaches it",
    why="A cast reads and writes the whole tensor. Of a constant it gives the same result each time.",
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn


class Positional(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.rand(256, 256, dtype=torch.float64)

    def forward(self, x):
        return x + self.table.to(x.dtype)


model = Positional()
for _ in range(10):
    y = model(torch.ones(256, 256))
""",
        at=11,
        prints="the same float64 tensor of 512.0 KiB was cast to float32 10 times, 2.5 MiB in all, and it did "
        "not change",
    ),
    Program(
        """\
import torch

weight = torch.randn(512, 256)
hidden = torch.ones(2, 512).half()
for _ in range(20):
    scores = hidden @ weight.half()
""",
        at=6,
        prints="the same float32 tensor of 512.0 KiB was cast to float16 20 times, 5.0 MiB in all, and it did "
        "not change",
    ),
    Program(
        """\
import torch

mean = torch.rand(3, 224, 224, dtype=torch.float64)
total = 0.0
for _ in range(12):
    images = torch.ones(3, 224, 224)
    total += (images - mean.float()).sum().item()
""",
        at=7,
        prints="the same float64 tensor of 1.1 MiB was cast to float32 12 times, 6.9 MiB in all, and it did not change",
    ),
    Program(
        """\
import torch

weight = torch.ones(256, 256, dtype=torch.int8)
x = torch.ones(2, 256).bfloat16()
for _ in range(16):
    y = x @ weight.to(x.dtype)
""",
        at=6,
        prints="the same int8 tensor of 64.0 KiB was cast to bfloat16 16 times, 2.0 MiB in all, and it did not change",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn


class Positional(nn.Module):
    def __init__(self):
        super().__init__()
        table = torch.rand(256, 256, dtype=torch.float64)
        self.register_buffer("table", table.float())

    def forward(self, x):
        return x + self.table


model = Positional()
for _ in range(10):
    y = model(torch.ones(256, 256))
"""
    ),
    Program(
        """\
import torch

for _ in range(12):
    data = torch.rand(256, 128, dtype=torch.float64)
    x = data.float()
"""
    ),
    Program(
        """\
import torch

average = torch.zeros(256, 256)
for _ in range(12):
    average += torch.rand(256, 256)
    x = average.bfloat16()
"""
    ),
]
