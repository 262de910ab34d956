"""DG114 number-wraps."""

from typing import Any

import torch
from torch import Tensor

from ..._engine.ops import NARROW, again, operator_of, widened
from .._kit import LARGEST, Op, Recorder, Rule, Severity, name_of, on

RULE = Rule(
    "DG114",
    "number-wraps",
    Severity.WARNING,
    summary="Integers are compared with or clamped to a number outside of their dtype, which becomes another one.",
    says="`{what}`: {number} becomes {wrapped} in {dtype}, and {wrong} of {total} results are wrong",
    fix="a number from {least} to {most}, or a wider dtype: `.{wider}()` first",
    why=(
        "A Python integer, or a tensor without axes, takes the dtype of the integer tensor that it meets, modulo the "
        "dtype's range. In uint8 -1 is 255: `labels == -1` finds the 255s, `labels > -1` finds nothing. Of signed "
        "integers, `==` and `!=` with a number of the same bits (`0xFF` in int8) are no finding, nor is a comparison "
        "that comes out right."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.eq.html",
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
    ),
)

_EQUAL = frozenset(["eq", "ne"])
_COMPARE = [*_EQUAL, "lt", "le", "gt", "ge", "clamp", "clamp_min", "clamp_max"]


@on("after", RULE, ops=_COMPARE)
def compared(event: Op, audit: Recorder) -> None:
    """Only what the values show: the same in int64 gives something else."""
    source = event.args[0]
    if not isinstance(source, Tensor) or source.dtype not in NARROW or not event.readable:
        return
    if not operator_of(event.func).pure:  # `out=` is the program's own tensor
        return
    if not 0 < source.numel() <= LARGEST or not audit.due("DG114", event.site, event.name):
        return
    ends = torch.iinfo(source.dtype)
    number = next((n for n in _numbers(event) if not ends.min <= n <= ends.max), None)
    if number is None or (event.name in _EQUAL and ends.min < 0 <= number < 2**ends.bits):
        return
    wrong = int((again(event.func, event.args, event.kwargs, widened) != event.out).sum())
    if wrong:
        facts = {
            "number": number,
            "wrapped": (number - ends.min) % 2**ends.bits + ends.min,
            "dtype": name_of(source.dtype),
            "wrong": wrong,
            "total": event.out.numel(),
            "least": ends.min,
            "most": ends.max,
            "wider": "long" if source.dtype is torch.int32 else "int",
        }
        audit.suspect(RULE, event, source, **facts).find(audit)


def _numbers(event: Op) -> list[int]:
    """The numbers that take the dtype of the tensor: Python's, and those of integer tensors without axes."""
    plain = [int(v) if _is_number(v) else v for v in (*event.args[1:], *event.kwargs.values())]
    return [value for value in plain if type(value) is int]


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.ndim and not value.is_floating_point() and not value.is_complex()
