"""DG104 repeated-cast."""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from .._kit import Op, Recorder, Rule, Severity, around, human, name_of, on, size_of

RULE = Rule(
    "DG104",
    "repeated-cast",
    Severity.WARNING,
    summary="The same tensor is cast again and again.",
    says="the same {was} tensor of {size} was cast to {dtype} {times} times, {total} in all, and it did not change",
    fix="cast it once, before the loop; in a module, register the result as a buffer, so that `.to()` reaches it",
    why="A cast reads and writes the whole tensor. Of a constant it gives the same result each time.",
    unsafe=("cast_once",),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html",),
)

_OFTEN, _BIG, _MUCH = 10, 2**16, 2**20  # times, bytes of one result, bytes in all


@dataclass
class Repeats:
    rows: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)


@on("cast", RULE)
def cast_again(event: Op, audit: Recorder) -> None:
    source, rows = event.inputs[0], audit.state(Repeats).rows
    if event.kind != "explicit" or source.is_inference() or source.numel() < 2:
        return
    key = id(source), event.out.dtype, event.site
    row, version = rows.get(key), source._version
    if row is None or row[0]() is not source or row[1] != version:
        if len(rows) > 1000:
            for old in [old for old, known in rows.items() if known[0]() is None and known[2] < _OFTEN]:
                del rows[old]
        # int8, uint8, float8: kept narrow to save memory; weights: between two steps
        stored = source.dtype.itemsize == 1 or source.requires_grad
        known = weakref.ref(source), version, 1, event.module, name_of(source.dtype), size_of(source)
        rows[key] = [*known, size_of(event.out), stored]
    else:
        row[2] += 1
        row[-1] = row[-1] or (row[2] == _OFTEN and _is_given(source, event))


def _is_given(source: Tensor, event: Op) -> bool:
    """Whether it is an argument of the forward that casts it, which its caller may give once or each time."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != event.site.key:
        frame = frame.f_back
    if frame is None or event.module is None:
        return False
    code, known = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [known.get(name) for name in names]
    return isinstance(next(iter(given), None), torch.nn.Module) and any(one is source for one in given)


@around(torch.utils, "swap_tensors", rule=RULE, always=True)
def _swap(audit: Recorder, original: Callable[..., Any], t1: Tensor, t2: Tensor) -> None:
    """It refuses tensors that have weak references."""
    rows = audit.state(Repeats).rows
    for key in [key for key in rows if key[0] in (id(t1), id(t2))]:
        del rows[key]
    original(t1, t2)


@on("end", RULE)
def repeated(audit: Recorder) -> None:
    for (_, dtype, site), (_, _, times, module, was, size, made, stored) in audit.state(Repeats).rows.items():
        if times >= _OFTEN:
            total = times * made
            facts = {"was": was, "size": human(size), "dtype": name_of(dtype), "times": times, "total": human(total)}
            severity = None if made >= _BIG and total >= _MUCH and not stored else Severity.INFO
            audit.find(RULE, site, module=module, op="to", facts=facts, severity=severity, to_dtype=dtype, bytes=total)
