"""DG105 value-overflow."""

import math
from typing import Any

import torch
from torch import Tensor

from ..._engine.ops import SOFTMAX, again, operator_of
from .._kit import Op, Recorder, Rule, Severity, Suspect, limit, name_of, on, readable, size_of

RULE = Rule(
    "DG105",
    "value-overflow",
    Severity.WARNING,
    summary="Finite values overflow to infinity in a narrower dtype.",
    says="`{what}` makes {count} of {total} finite values infinite in {dtype}, whose largest value is {largest}",
    fix="compute it in a wider dtype, or clamp it first: {advice}",
    why=(
        "float16 ends at 65504. A sum, a product, or the cast of a mask of `finfo(float32).min` leaves it, "
        "and softmax or a mean make NaN of infinity some lines later."
    ),
    unsafe=("limit_of_dtype", "widen_operands", "retype_inside", "called_in_wider", "widen_origins"),
    sampled=True,
    sources=(
        "https://github.com/huggingface/transformers/issues/25938",
        "https://github.com/huggingface/transformers/issues/17306",
    ),
    guesses=True,
)

_UP = "`.float()` on what goes in, and back to half when the values fit"
_CLAMP = "from `torch.finfo(dtype).min` to `.max`; build masks from the dtype they are used in"
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
    if not event.readable or not operator_of(event.func).pure or not event.inputs:
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
                "total": sum(t.numel() for t in event.inputs), "dtype": "float16",
                "largest": limit(_end(torch.float16)), "advice": "clip gradients of float32 parameters",
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
        "largest": limit(_end(out.dtype)), "advice": advice,
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
