"""DG206 fill-does-not-fit."""

import re

from .._kit import Program, Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG206",
    "fill-does-not-fit",
    Severity.ERROR,
    summary="A tensor is filled with a constant that its dtype does not hold.",
    says="`{what}` was refused: {reason}",
    fix='`torch.finfo(x.dtype).min` in place of a constant, or `float("-inf")`; `torch.iinfo` for integers',
    why=(
        "-1e9 and finfo(float32).min are no float16. In float32 the line works, under autocast or after "
        "`.half()` it does not."
    ),
    sources=("https://github.com/huggingface/transformers/issues/17306",),
)

_SAYS = re.compile(r"cannot be converted to type .* without overflow")


@explains(Turn.MESSAGE)
def refused(it: Refused) -> bool:
    return bool(_SAYS.search(it.event.reason)) and it.tell(RULE)


BAD = [
    Program(
        """\
import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, -1e9)
""",
        at=5,
        prints="`scores.masked_fill(mask, -1e9)` was refused: value cannot be converted to type c10::Half without "
        "overflow",
        fix=('`torch.finfo(x.dtype).min` in place of a constant, or `float("-inf")`; `torch.iinfo` for integers'),
    ),
    Program(
        """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk = nn.Linear(4, 8)

    def forward(self, x, mask):
        q, k = self.qk(x).chunk(2, -1)
        scores = q @ k.transpose(-1, -2)
        scores = scores.masked_fill(mask, torch.finfo(torch.float32).min)
        return scores.softmax(-1)


mask = torch.ones(3, 3).triu(1).bool()
with torch.autocast("cpu", dtype=torch.float16):
    Attention()(torch.randn(1, 3, 4), mask)
""",
        at=13,
        prints="`scores.masked_fill(mask, torch.finfo(torch.float32).min)` was refused: value cannot be converted "
        "to type c10::Half without overflow",
    ),
    Program(
        """\
import torch

x = torch.randn(2, 2).half()
mask = torch.full((2, 2), -1e5, dtype=x.dtype)
""",
        at=4,
        prints="`torch.full((2, 2), -1e5, dtype=x.dtype)` was refused: value cannot be converted to type "
        "c10::Half without overflow",
    ),
    Program(
        """\
import torch

scores = torch.randn(2, 2).half()
scores[:, 0].fill_(-1e9)
""",
        at=4,
        prints="`scores[:, 0].fill_(-1e9)` was refused: value cannot be converted to type c10::Half without overflow",
    ),
    Program(
        """\
import torch

image = torch.zeros(3, 4, 4, dtype=torch.uint8)
image[:, 0].fill_(255)
image[:, 1].fill_(256)
""",
        at=5,
        prints="`image[:, 1].fill_(256)` was refused: value cannot be converted to type uint8_t without overflow",
    ),
]
GOOD = [
    Program(
        """\
import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
"""
    ),
    Program(
        """\
import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, float("-inf")).softmax(-1)
"""
    ),
    Program(
        """\
import torch

scores = torch.randn(3, 3).half()
mask = torch.ones(3, 3).triu(1).bool()
weights = scores.float().masked_fill(mask, -1e9).softmax(-1).to(scores.dtype)
"""
    ),
    Program(
        """\
import torch

scores = torch.randn(3, 3).bfloat16()
mask = torch.ones(3, 3).triu(1).bool()
scores = scores.masked_fill(mask, -1e9)
"""
    ),
]
