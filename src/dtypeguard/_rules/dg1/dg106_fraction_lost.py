"""DG106 fraction-lost."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG106",
    "fraction-lost",
    Severity.WARNING,
    summary="Values with a fraction are written into an integer tensor, and lose the fraction.",
    says="`{what}` writes {source} values into {dtype}: {count} of {total} lose their fraction",
    fix="allocate the target with a floating dtype, or round where it is meant: `.round().to({dtype_code})`",
    why="Writing into an integer tensor truncates towards zero, without a word.",
    sources=("https://github.com/pytorch/pytorch/issues/126000",),
)

BAD = [
    Program(
        """\
import torch

tokens = torch.tensor([[3, 5, 9]])
scores = torch.tensor([[0.9, 1.0, 0.4]])
kept = torch.zeros_like(tokens)
kept[:, :3] = scores
""",
        at=6,
        prints="`kept[:, :3] = scores` writes float32 values into int64: 2 of 3 lose their fraction",
    ),
    Program(
        """\
import torch

labels = torch.zeros(3, dtype=torch.int64)
labels[1] = 0.9
""",
        at=4,
        prints="`labels[1] = 0.9` writes 0.9 values into int64: 1 of 1 lose their fraction",
    ),
    Program(
        """\
import torch

counts = torch.tensor([0, 2, 0])
smoothed = counts.masked_fill(counts == 0, 0.5)
""",
        at=4,
        prints="`counts.masked_fill(counts == 0, 0.5)` writes 0.5 values into int64: 3 of 3 lose their fraction",
    ),
    Program(
        """\
import torch
from torch import nn


class Meter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0, 0]))

    def forward(self, x):
        self.mean.copy_(self.mean * 0.9 + x.mean(0) * 0.1)
        return x


Meter()(torch.ones(4, 2))
""",
        at=11,
        prints="`self.mean.copy_(self.mean * 0.9 + x.mean(0) * 0.1)` writes float32 values into int64: 2 of 2 "
        "lose their fraction",
    ),
    Program(
        """\
import torch

image = torch.full((3, 2, 2), 0.3)
canvas = torch.zeros(3, 2, 4, dtype=torch.uint8)
canvas[:, :, :2] = image * 255
""",
        at=5,
        prints="`canvas[:, :, :2] = image * 255` writes float32 values into uint8: 12 of 12 lose their fraction",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import torch

tokens = torch.tensor([[3, 5, 9]])
scores = torch.tensor([[0.9, 1.0, 0.4]])
kept = torch.zeros_like(tokens, dtype=scores.dtype)
kept[:, :3] = scores
"""
    ),
    Program(
        """\
import torch

counts = torch.zeros(3, dtype=torch.int64)
counts[:2] = torch.tensor([1.0, 2.0])
counts.copy_(torch.tensor([0.5, 1.5, 2.5]).round())
"""
    ),
    Program(
        """\
import torch

hidden = torch.zeros(3, dtype=torch.bool)
hidden.copy_(torch.tensor([0.0, 0.5, 1.0]))
"""
    ),
]
