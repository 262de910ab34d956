"""DG105 value-overflow."""

import math
from typing import Any

import torch
from torch import Tensor

from ..._watch.operations import SOFTMAX, again, trait_of
from .._kit import Op, Program, Recorder, Rule, Severity, Suspect, name_of, on, readable, size_of

RULE = Rule(
    "DG105",
    "value-overflow",
    Severity.WARNING,
    summary="Finite values become infinite, since they are beyond the largest value of their dtype.",
    says="`{what}` makes {count} of {total} finite values infinite in {dtype}, whose largest value is {largest:g}",
    fix="compute it in a wider dtype, or clamp it first: {advice}",
    why=(
        "float16 ends at 65504. A sum, a product, or the cast of a mask of `finfo(float32).min` leaves it, "
        "and softmax or a mean make NaN of infinity some lines later."
    ),
    sources=(
        "https://github.com/huggingface/transformers/issues/25938",
        "https://github.com/huggingface/transformers/issues/17306",
    ),
    guesses=True,
)

_UP = "`.float()` on what goes in, and back to half when the values fit"
_CLAMP = "clamp to `torch.finfo(dtype).min` and `.max` first; build masks from the dtype they are used in"
_ADDITIVE = frozenset(["add", "sub", "baddbmm", "addmm"])


class Masked(Suspect):
    """Only below the dtype's end, as masks do it: harmless, unless a whole row is."""


@on("cast", RULE)
def narrowed(event: Op, audit: Recorder) -> None:
    """A cast to a dtype that ends earlier."""
    source, out = event.inputs[0], event.out
    if not (source.dtype.is_floating_point and out.dtype.is_floating_point) or event.backward:
        return
    if _end(out.dtype) >= _end(source.dtype) or not event.readable:
        return
    if audit.due("DG105", event.site, out.dtype):
        values = source.float() if source.dtype.itemsize < 4 else source  # float8 has few operations, and some NaN only
        _overflow(event, ~out.float().isfinite() & values.isfinite(), values, _CLAMP, audit)


def _end(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


@on("half", RULE)
def computed(event: Op, audit: Recorder) -> None:
    """What an operation gave in float16; done again in float32 where it is infinite."""
    out = event.out
    if not event.readable or not trait_of(event.func).pure or not event.inputs:
        return
    if event.name.startswith(("empty", "new_empty")) or not audit.due("DG105", event.site, event.name):
        return
    infinite = out.isinf()
    if not bool(infinite.any()) or any(isinstance(a, float) and math.isinf(a) for a in event.args):
        return
    if any(not bool(t.isfinite().all()) for t in event.inputs if t.is_floating_point()):
        return
    wide = again(event.func, event.args, event.kwargs, _wider)
    if isinstance(wide, Tensor) and wide.dtype is not torch.float16:
        values = wide if event.name in _ADDITIVE else wide.abs()
        _overflow(event, infinite & wide.isfinite(), values, _UP, audit)


@on("after", RULE, ops=["_foreach_norm"])
def norms(event: Op, audit: Recorder) -> None:
    """Of gradients, that are clipped by it: by an infinite one to zero."""
    results = [t for t in event.out if isinstance(t, Tensor)] if isinstance(event.out, (list, tuple)) else []
    if not results or results[0].dtype is not torch.float16 or not readable(*event.inputs, *results):
        return
    if audit.due("DG105", event.site, event.name):
        wrong = [
            t for t, norm in zip(event.inputs, results, strict=False) if bool(norm.isinf()) and bool(t.isfinite().all())
        ]
        if wrong:
            facts = {
                "what": event.what, "count": sum(t.numel() for t in wrong),
                "total": sum(t.numel() for t in event.inputs), "dtype": "float16", "largest": _end(torch.float16),
                "advice": "clip gradients of float32 parameters",
            }  # fmt: skip
            audit.find(
                RULE, event.site, module=event.module, op=event.name, facts=facts, from_dtype=torch.float16,
                to_dtype=torch.float16, bytes=sum(map(size_of, wrong)), origin=audit.origin_of(wrong[0]),
            )  # fmt: skip


def _wider(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype is torch.float16 else value
    if isinstance(value, list):
        return [_wider(part) for part in value]
    return torch.float32 if value is torch.float16 else value


def _overflow(event: Op, lost: Tensor, values: Tensor, advice: str, audit: Recorder) -> None:
    """`lost` says which of the results are infinite, and should be as in `values`."""
    count = int(lost.sum())
    if not count:
        return
    out = event.out
    facts = {
        "count": count, "total": int(values.isfinite().sum()), "dtype": name_of(out.dtype),
        "largest": _end(out.dtype), "advice": advice,
    }  # fmt: skip
    suspect = audit.suspect(RULE, event, event.inputs[0], **facts)
    only_mask = bool((values[lost] < 0).all())
    suspect.find(audit, Severity.INFO if only_mask else None)
    if only_mask:
        facts = {**suspect.facts, "advice": f"{_UP}, or keep the mask bool"}
        audit.lineage.mark(out, Masked(RULE, event.site, facts, suspect.fields))


@on("after", RULE, ops=SOFTMAX)
def softmax(event: Op, audit: Recorder) -> None:
    """NaN, if a mask has hidden a whole row."""
    out = event.out[0] if isinstance(event.out, tuple) else event.out
    causes = [cause for cause in audit.lineage.causes(event.inputs, 16) if isinstance(cause, Masked)]
    if causes and readable(out) and bool(out.isnan().any()):
        for cause in causes:
            cause.find(audit)


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
        fix=(
            "compute it in a wider dtype, or clamp it first: `.float()` on what goes in, and back to half "
            "when the values fit"
        ),
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
