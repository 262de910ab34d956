"""DG105 value-overflow."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG105",
    "value-overflow",
    Severity.WARNING,
    summary="Finite values become infinite, since they are beyond the largest value of their dtype.",
    says=("`{what}` makes {count} of {total} finite values infinite in {dtype}, whose largest value is {largest:g}"),
    fix="compute it in a wider dtype, or clamp it first: {advice}",
    why=(
        "float16 ends at 65504. A sum, a product, or the cast of a mask of `finfo(float32).min` leaves it, "
        "and softmax or a mean make NaN of infinity some lines later."
    ),
    sources=(
        "https://github.com/huggingface/transformers/issues/25938",
        "https://github.com/huggingface/transformers/issues/17306",
    ),
)

BAD = [
    Program(
        """\
import torch

x = torch.full((2, 8), 300.0).half()
variance = x.pow(2).mean(-1, keepdim=True)
y = x * torch.rsqrt(variance + 1e-6)
""",
        at=4,
        prints="`x.pow(2)` makes 16 of 16 finite values infinite in float16, whose largest value is 65504",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F

logits = torch.full((2, 40_000), -3.0).half()
labels = torch.ones_like(logits)
pixels = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
cost = pixels.sum(-1)
""",
        at=7,
        prints="`pixels.sum(-1)` makes 2 of 2 finite values infinite in float16, whose largest value is 65504",
    ),
    Program(
        """\
import torch

least = torch.finfo(torch.float16).min
causal = torch.full((3, 3), least).triu(1).half()
padding = torch.zeros(3, 3).half()
padding[:, 0] = least
scores = torch.full((3, 3), -40.0).half()
weights = (scores + torch.minimum(causal, padding)).softmax(-1)
""",
        at=8,
        prints="`scores + torch.minimum(causal, padding)` makes 6 of 9 finite values infinite in float16, whose "
        "largest value is 65504",
    ),
    Program(
        """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((3, 3), -1e9).triu())

    def forward(self, scores):
        return (scores + self.mask).softmax(-1)


model = Attention().half()
weights = model(torch.zeros(3, 3).half())
""",
        at=14,
        prints="`Attention().half()` makes 6 of 9 finite values infinite in float16, whose largest value is 65504",
    ),
    Program(
        """\
import torch
from torch import nn

weight = nn.Parameter(torch.ones(64).half())
weight.grad = torch.full_like(weight, 2e4)
nn.utils.clip_grad_norm_([weight], 1.0)
gradient = weight.grad
""",
        at=6,
        prints="`nn.utils.clip_grad_norm_([weight], 1.0)` makes 64 of 64 finite values infinite in float16, "
        "whose largest value is 65504",
    ),
    Program(
        """\
import torch

mask = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
scores = torch.zeros(3, 3).half()
weights = (scores + mask.half()).softmax(-1)
""",
        at=5,
        prints="`mask.half()` makes 3 of 9 finite values infinite in float16, whose largest value is 65504",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import torch

x = torch.full((2, 8), 300.0).half()
wide = x.float()
variance = wide.pow(2).mean(-1, keepdim=True)
y = (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)
"""
    ),
    Program(
        """\
import torch

mask = torch.full((3, 3), -torch.inf).triu(1)
scores = torch.zeros(3, 3).half()
weights = (scores + mask.half()).softmax(-1)
"""
    ),
    Program(
        """\
import torch

values = torch.tensor([1e6, -1e6, 1.0])
limit = torch.finfo(torch.float16).max
x = values.clamp(-limit, limit).half()
"""
    ),
    Program(
        """\
import torch

hidden = torch.ones(3, 3).triu(1).bool()
scores = torch.full((3, 3), 5.0).half()
weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
"""
    ),
]
