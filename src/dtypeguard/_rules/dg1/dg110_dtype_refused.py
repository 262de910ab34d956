"""DG110 dtype-refused."""

import re
from collections.abc import Callable

import torch

from ..._engine.watch.events import Operand
from .._kit import Rule, Severity, name_of
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG110",
    "dtype-refused",
    Severity.ERROR,
    summary="PyTorch refuses an operand because of its dtype.",
    says="`{what}` was refused: {reason}{operands}",
    fix="cast the operand whose dtype differs: {advice}",
    why="PyTorch's message names neither the argument nor where its dtype comes from.",
    safe=("float32_at_birth", "cast_operands", "cast_to_narrow"),
    unsafe=("convert_model",),
    sources=(
        "https://github.com/pytorch/pytorch/issues/105243",
        "https://github.com/pytorch/pytorch/issues/102922",
    ),
)


def _indices(it: Refused) -> list[Operand]:
    """What is no index: integers that are too narrow, or floats where an index is."""
    narrow = [o for o in it.integers if o.dtype not in (torch.int64, torch.bool)]
    return narrow or [o for o in it.operands if o.dtype.is_floating_point and not o.held][-1:]


def _conditions(it: Refused) -> list[Operand]:
    return [o for o in it.integers if o.dtype is not torch.bool]


# What PyTorch says, what to write, and which operands are to blame where it is not the odd one out.
_SAYS: tuple[tuple[str, str, Callable[[Refused], list[Operand]]], ...] = (
    (
        r"result type \w+ can't be cast",
        "an integer tensor takes no fractions: leave it out, or `.round().to(dtype)` where it is meant",
        lambda it: it.odd,
    ),
    (r"dtype Long but expected (Float|Double)", "`.to(torch.float32)` on the targets", lambda it: it.integers),
    (r"to be a boolean tensor|boolean masks", "`.bool()` on the condition or mask", _conditions),
    (
        r"as indices must be|for index|Long but (got|found)|scalar types: Long|be Long or|LongTensor"
        r"|expected scalar type Long",
        "`.long()` on the indices or class targets",
        _indices,
    ),
    (r"bool tensor", "`~mask` in place of `1 - mask`, or `mask.float()`", lambda it: it.odd),
)


@explains(Turn.MESSAGE)
def integers_refused(it: Refused) -> bool:
    for says, advice, blamed in _SAYS:
        if re.search(says, it.event.reason):
            return it.tell(RULE, blamed(it), advice=advice)
    return False


@explains(Turn.DTYPE)
def refused(it: Refused) -> bool:
    """Operands of several dtypes, and nothing else."""
    if len(it.floats) == 1 and it.integers:
        return it.tell(RULE, it.integers, advice=f"`.to(torch.{name_of(next(iter(it.floats)))})`")
    if len(it.operands) == 1:
        return it.tell(RULE, advice="`.float()` first")
    like = next((name_of(o.dtype) for o in it.operands if o not in it.odd), None)
    advice = f"`.to(torch.{like})`" if like else "cast one side to the dtype of the other"
    if like and it.odd[0].held:
        other = f"what it gets: `.to(torch.{name_of(it.odd[0].dtype)})`"
        advice = f"convert the layer like its model, {advice}, or {other}"
    return it.tell(RULE, advice=advice)
