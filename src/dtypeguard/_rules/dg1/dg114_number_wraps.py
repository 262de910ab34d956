"""DG114 number-wraps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._engine.ops import NARROW, again, operator_of, widened
from .._kit import LARGEST, Op, Recorder, Rule, Severity, around, name_of, on

RULE = Rule(
    "DG114",
    "number-wraps",
    Severity.WARNING,
    summary="A Python number does not fit the integer tensor's dtype.",
    says="`{what}`: {number} becomes {wrapped} in {dtype}{harm}",
    fix="use a number from {least} to {most}, or a wider dtype: `.{wider}()` first",
    why=(
        "A Python integer, or a tensor without axes, takes the dtype of the integer tensor that it meets, modulo the "
        "dtype's range. In uint8 -1 is 255: `labels == -1` finds the 255s, `labels > -1` finds nothing. Of signed "
        "integers, `==` and `!=` with a number of the same bits (`0xFF` in int8) are no finding, nor is a comparison "
        "that comes out right."
    ),
    unsafe=("clamped_integers", "wider_integers", "wider_target"),
    sampled=True,
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
    number = _beyond(_numbers(event), source.dtype)
    if number is None or (event.name in _EQUAL and ends.min < 0 <= number < 2**ends.bits):
        return
    wrong = int((again(event.func, event.args, event.kwargs, widened) != event.out).sum())
    if wrong:
        harm = f", and {wrong} of {event.out.numel()} results are wrong"
        audit.suspect(RULE, event, source, **_facts_of(number, source.dtype, harm)).find(audit)


_FILLS = "fill_ masked_fill_ index_fill_ scatter_ clamp_ clamp_min_ clamp_max_ masked_fill index_fill scatter".split()
_FILLS += "full full_like new_full scalar_tensor".split()


@on("after", RULE, ops=_FILLS)
def filled(event: Op, audit: Recorder) -> None:
    out = event.out
    if isinstance(out, Tensor) and out.dtype in NARROW:
        values = [*event.args[1 if event.name.startswith("full") else -1 :], *event.kwargs.values()]
        number = _beyond([value for value in values if type(value) is int], out.dtype)
        if number is not None:
            audit.suspect(RULE, event, out, **_facts_of(number, out.dtype)).find(audit)


@around(Tensor, "__setitem__", rule=RULE)
def _assignment(audit: Recorder, original: Callable[..., Any], self: Tensor, key: Any, value: Any) -> None:
    """`labels[1] = -1`: PyTorch makes the number one of the dtype before it dispatches anything."""
    original(self, key, value)
    if type(value) is int and self.dtype in NARROW and _beyond([value], self.dtype) is not None:
        audit.guarded(_assigned, audit, self, value)


def _assigned(audit: Recorder, target: Tensor, number: int) -> None:
    site = audit.here()
    facts = {"what": site.expression or site.source, **_facts_of(number, target.dtype)}
    audit.find(RULE, site, facts=facts, module=audit.module(), op="__setitem__", to_dtype=target.dtype)


def _beyond(numbers: list[int], dtype: torch.dtype) -> int | None:
    """The first that the dtype does not have."""
    ends = torch.iinfo(dtype)
    return next((number for number in numbers if not ends.min <= number <= ends.max), None)


def _facts_of(number: int, dtype: torch.dtype, harm: str = "") -> dict[str, Any]:
    ends = torch.iinfo(dtype)
    return {
        "number": number,
        "wrapped": (number - ends.min) % 2**ends.bits + ends.min,
        "dtype": name_of(dtype),
        "harm": harm,
        "least": ends.min,
        "most": ends.max,
        "wider": "long" if dtype is torch.int32 else "int",
    }


def _numbers(event: Op) -> list[int]:
    """The numbers that take the dtype of the tensor: Python's, and those of integer tensors without axes."""
    plain = [int(v) if _is_number(v) else v for v in (*event.args[1:], *event.kwargs.values())]
    return [value for value in plain if type(value) is int]


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.ndim and not value.is_floating_point() and not value.is_complex()
