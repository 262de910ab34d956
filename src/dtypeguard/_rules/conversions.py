"""DG104, DG106, DG107: casts without use, and writing into a narrower tensor."""

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._base.dtypes import name_of
from .._watch.events import Op, on, readable
from .._watch.looks import LARGEST
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.text import human, size_of

_OFTEN, _BIG, _MUCH = 10, 2**16, 2**20  # times, bytes of one result, bytes in all


# ---------------------------------------------------------------- DG104


@dataclass
class Repeats:
    rows: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)


@on("cast", "DG104")
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


@on("swapped", "DG104")
def swapped(first: Tensor, second: Tensor, audit: Recorder) -> None:
    rows = audit.state(Repeats).rows
    for key in [key for key in rows if key[0] in (id(first), id(second))]:
        del rows[key]


@on("end", "DG104")
def repeated(audit: Recorder) -> None:
    for (_, dtype, site), (_, _, times, module, was, size, made, stored) in audit.state(Repeats).rows.items():
        if times >= _OFTEN:
            total = times * made
            facts = {"was": was, "size": human(size), "dtype": name_of(dtype), "times": times, "total": human(total)}
            severity = None if made >= _BIG and total >= _MUCH and not stored else Severity.INFO
            audit.find(
                "DG104", site, module=module, op="to", facts=facts, severity=severity, to_dtype=dtype, bytes=total
            )


# ---------------------------------------------------------------- DG106, DG107


@on("write", "DG106", "DG107")
def written(event: Op, audit: Recorder) -> None:
    """A tensor keeps its dtype when it is written to."""
    if audit.local.loading or not event.readable:
        return
    out = event.out
    source = next(t for t in reversed(event.inputs) if t.dtype is not out.dtype)
    what = event.site.expression or event.site.source or event.name
    facts: dict[str, Any] = {"what": what, "source": name_of(source.dtype), "dtype": name_of(out.dtype)}
    fields: dict[str, Any] = {
        "module": event.module, "op": event.name, "from_dtype": source.dtype, "to_dtype": out.dtype,
        "bytes": size_of(out), "origin": audit.origin_of(source),
    }  # fmt: skip
    real, whole = not out.dtype.is_complex, not out.dtype.is_floating_point and not out.dtype.is_complex
    if source.dtype.is_complex and real:
        lost = int((source.imag != 0).sum())
        facts |= {
            "loss": f": the imaginary parts of {lost} of {source.numel()} values are lost",
            "advice": f"allocate it complex: `dtype=torch.{name_of(source.dtype)}`, or write `.real` where it is meant",
        }
        audit.find("DG107", event.site, facts=facts, severity=Severity.ERROR if lost else Severity.INFO, **fields)
    elif source.dtype.is_floating_point and whole and out.dtype is not torch.bool:
        if source.numel() <= LARGEST:
            lost = int((source != source.trunc()).sum())
            if lost:
                facts |= {"count": lost, "total": source.numel(), "dtype_code": f"torch.{name_of(out.dtype)}"}
                severity = Severity.INFO if out.dtype is torch.uint8 else None  # pictures
                audit.find("DG106", event.site, facts=facts, severity=severity, **fields)
    elif source.dtype.is_floating_point and out.dtype.is_floating_point and source.dtype.itemsize > out.dtype.itemsize:
        facts |= {"loss": ", rounded", "advice": f"allocate it in {name_of(source.dtype)}, or cast where it is meant"}
        audit.find("DG107", event.site, facts=facts, **fields)


@on("start", "DG106")
def replace(audit: Recorder) -> None:
    audit.patches.replace(Tensor, "__setitem__", functools.partial(_assignment, audit))


def _assignment(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """`labels[1] = 0.9`: PyTorch makes the number an integer before it dispatches anything."""

    def assign(self: Tensor, key: Any, value: Any) -> None:
        if type(value) is float and not self.dtype.is_floating_point and audit.live and not audit.local.paused:
            audit.guarded(_number, audit, self, value)
        original(self, key, value)

    return assign


def _number(audit: Recorder, target: Tensor, value: float) -> None:
    if math.isfinite(value) and value != int(value) and not target.is_complex() and target.dtype is not torch.bool:
        site, dtype = audit.here(), name_of(target.dtype)
        facts = {"what": site.source, "source": f"{value:g}", "dtype": dtype, "count": 1, "total": 1}
        facts["dtype_code"] = f"torch.{dtype}"
        audit.find("DG106", site, module=audit.module(), op="__setitem__", facts=facts, to_dtype=target.dtype)


_FILLS = ["fill_", "masked_fill", "masked_fill_", "full_like", "new_full", "full", "index_fill_"]


@on("after", "DG106", ops=_FILLS)
def filled(event: Op, audit: Recorder) -> None:
    """A number with a fraction, for an integer tensor."""
    out = event.out
    if not isinstance(out, Tensor) or out.dtype.is_floating_point or out.dtype.is_complex or not readable(out):
        return
    values = [v for v in (*event.args, *event.kwargs.values()) if isinstance(v, float)]
    values += [float(t) for t in event.inputs if t.ndim == 0 and t.dtype.is_floating_point and readable(t)]
    if out.dtype is not torch.bool and any(math.isfinite(value) and value != int(value) for value in values):
        dtype, total = name_of(out.dtype), out.numel()
        what = event.site.expression or event.name
        facts = {"what": what, "source": f"{values[0]:g}", "dtype": dtype, "count": total, "total": total}
        facts["dtype_code"] = f"torch.{dtype}"
        audit.find(
            "DG106", event.site, module=event.module, op=event.name, facts=facts, to_dtype=out.dtype,
            bytes=size_of(out),
        )  # fmt: skip
