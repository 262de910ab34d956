"""DG103 to DG109, DG111, DG112: conversions that lose a result, a value or time."""

import ast
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._dtypes import name_of
from .._rules import Severity
from ._events import Op, on, readable
from ._operations import trait_of
from ._recorder import Recorder
from ._sites import Site
from ._text import human, size_of

_EXACT = {torch.bfloat16: 256, torch.float16: 2048}  # integers up to here have one value each
_NOISE = 0.125  # the spacing of angles from which on their sine is none
_OFTEN, _MUCH = 10, 2**20
_SEVERAL = 8
_LARGEST = 10**6  # elements that are looked at in full


@dataclass
class Looks:
    """How often a line was met; what costs something is done at the first few times, and then at powers of two."""

    counts: dict[Any, int] = field(default_factory=dict)

    def due(self, *key: Any) -> bool:
        count = self.counts[key] = self.counts.get(key, 0) + 1
        return count <= 4 or count & (count - 1) == 0


# ---------------------------------------------------------------- DG103


@on("cast", "DG103")
def discarded(event: Op, audit: Recorder) -> None:
    if event.direct and event.kind in ("explicit", "device") and event.site.thrown_away:
        source, what = event.inputs[0], event.site.expression or "the cast"
        moved = source.dtype is event.out.dtype
        subject = _subject(event.site)
        facts = {
            "what": what,
            "dtype": str(event.out.device) if moved else name_of(event.out.dtype),
            "was": f"on {source.device}" if moved else name_of(source.dtype),
            "subject": f"`{subject}`" if subject else "the tensor",
            "subject_code": subject or "x",
        }
        audit.find(
            "DG103", event.site, module=event.module, op=event.site.calls or event.name, facts=facts,
            from_dtype=source.dtype, to_dtype=event.out.dtype, bytes=size_of(event.out), origin=audit.origin_of(source),
        )  # fmt: skip


def _subject(site: Site) -> str:
    """`x` of `x.to(...)`."""
    try:
        call = ast.parse(site.written, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func.value)
    return ""


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
        stored = source.dtype.itemsize == 1  # int8, uint8, float8: kept narrow to save memory
        known = weakref.ref(source), version, 1, event.module, name_of(source.dtype), size_of(source)
        rows[key] = [*known, size_of(event.out), stored]
    else:
        row[2] += 1


@on("end", "DG104")
def repeated(audit: Recorder) -> None:
    for (_, dtype, site), (_, _, times, module, was, size, made, stored) in audit.state(Repeats).rows.items():
        if times >= _OFTEN:
            total = times * made
            facts = {"was": was, "size": human(size), "dtype": name_of(dtype), "times": times, "total": human(total)}
            severity = Severity.INFO if total < _MUCH or stored else None
            audit.find(
                "DG104", site, module=module, op="to", facts=facts, severity=severity, to_dtype=dtype, bytes=total
            )


# ---------------------------------------------------------------- DG105

_UP = "compute it in float32: `.float()` before, `.to(x.dtype)` after"
_CLAMP = "clamp to `torch.finfo(dtype).min` and `.max` first; build masks from the dtype they are used in"
_ADDITIVE = frozenset(["add", "add_", "sub", "sub_", "baddbmm", "addmm"])
_SOFTMAX = frozenset(["_softmax", "_log_softmax", "_safe_softmax"])


@on("cast", "DG105")
def narrowed(event: Op, audit: Recorder) -> None:
    """A cast to a dtype that ends earlier."""
    source, out = event.inputs[0], event.out
    if not (source.dtype.is_floating_point and out.dtype.is_floating_point) or event.backward:
        return
    if _end(out.dtype) >= _end(source.dtype) or not event.readable or not audit.state(Looks).due("DG105", event.site):
        return
    lost = ~torch.isfinite(out.float()) & torch.isfinite(source.float())  # float8 has few operations, and some NaN only
    _overflow(event, int(lost.sum()), source.numel(), _CLAMP, audit)


def _end(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


@on("half", "DG105")
def computed(event: Op, audit: Recorder) -> None:
    """What an operation gave in float16; done again in float32 where it is infinite."""
    out, looks = event.out, audit.state(Looks)
    if not event.readable or not looks.due("DG105", event.site, event.name):
        return
    if event.name in _SOFTMAX and bool(out.isnan().any()):
        _mask_was_all(event, audit)
        return
    if not trait_of(event.func).pure or event.name.startswith(("empty", "new_empty")) or not event.inputs:
        return
    infinite = out.isinf()
    if not bool(infinite.any()) or any(isinstance(a, float) and math.isinf(a) for a in event.args):
        return
    if any(not bool(t.isfinite().all()) for t in event.inputs if t.is_floating_point()):
        return
    again = event.func(*[_wider(a) for a in event.args], **{k: _wider(v) for k, v in event.kwargs.items()})
    if not isinstance(again, Tensor) or again.dtype is torch.float16:
        return
    lost = infinite & again.isfinite()
    only_mask = event.name in _ADDITIVE and not bool((out == math.inf).any())
    severity = Severity.INFO if only_mask else None
    _overflow(event, int(lost.sum()), out.numel(), _UP, audit, severity)
    node = audit.lineage.get(out)
    if only_mask and node is not None:
        node.cause = Masked(event, int(lost.sum()), out.numel())


@dataclass(eq=False)
class Masked:
    """Scores that a mask took past the end of the dtype: harmless, unless a whole row is."""

    event: Op
    lost: int
    total: int


def _mask_was_all(event: Op, audit: Recorder) -> None:
    node = audit.lineage.get(event.inputs[0])
    for ancestor in () if node is None else node.ancestors():
        if isinstance(ancestor.cause, Masked):
            _overflow(
                ancestor.cause.event, ancestor.cause.lost, ancestor.cause.total, f"{_UP}, or keep the mask bool", audit
            )


def _wider(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype is torch.float16 else value
    if isinstance(value, list):
        return [_wider(part) for part in value]
    return torch.float32 if value is torch.float16 else value


def _overflow(
    event: Op, count: int, total: int, advice: str, audit: Recorder, severity: Severity | None = None
) -> None:
    if not count:
        return
    source, out = event.inputs[0] if event.inputs else event.out, event.out
    facts = {
        "what": event.site.expression or event.name, "count": count, "total": total,
        "dtype": name_of(out.dtype), "largest": _end(out.dtype), "advice": advice,
    }  # fmt: skip
    audit.find(
        "DG105", event.site, module=event.module, op=event.name, facts=facts, severity=severity,
        from_dtype=source.dtype, to_dtype=out.dtype, bytes=size_of(out), origin=audit.origin_of(source),
    )  # fmt: skip


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
        if source.numel() <= _LARGEST:
            lost = int((source != source.trunc()).sum())
            if lost:
                facts |= {"count": lost, "total": source.numel(), "dtype_code": f"torch.{name_of(out.dtype)}"}
                audit.find("DG106", event.site, facts=facts, **fields)
    elif source.dtype.is_floating_point and out.dtype.is_floating_point and source.dtype.itemsize > out.dtype.itemsize:
        facts |= {"loss": ", rounded", "advice": f"allocate it in {name_of(source.dtype)}, or cast where it is meant"}
        audit.find("DG107", event.site, facts=facts, **fields)


# ---------------------------------------------------------------- DG108


@on("cast", "DG108")
def positions_cast(event: Op, audit: Recorder) -> None:
    if not event.backward:
        _collide(event, event.inputs[0], audit)


@on("mixed", "DG108")
def positions_promoted(event: Op, audit: Recorder) -> None:
    for source in event.kept:
        _collide(event, source, audit)


@on("after", "DG108", ops=["arange"])
def positions_made(event: Op, audit: Recorder) -> None:
    if event.out.dtype in _EXACT and event.out.numel() > 1 and event.readable:
        distinct = len(torch.unique(event.out))
        if distinct < event.out.numel():
            _positions(event, event.out, f"{event.out.numel()} positions, {distinct} distinct ones in", audit, None)


def _collide(event: Op, source: Tensor, audit: Recorder) -> None:
    """Integers that become equal; positions are those that ascend by one step."""
    limit = _EXACT.get(event.out.dtype)
    if limit is None or not 1 < source.numel() <= _LARGEST or source.dtype in _EXACT or not event.readable:
        return
    if source.dtype.is_complex or source.dtype is torch.bool or not audit.state(Looks).due("DG108", event.site):
        return
    if not limit < float(source.abs().max()) < math.inf:  # nor NaN
        return
    values = torch.unique(source)
    distinct = len(torch.unique(values.to(event.out.dtype)))
    flat = source.flatten()
    steps = flat[1:] - flat[:-1]
    positions = len(flat) >= _SEVERAL and bool((steps == steps[0]).all()) and float(steps[0]) != 0
    whole = not source.is_floating_point() or bool((flat == flat.round()).all())
    if distinct < len(values) and whole and (positions or not source.is_floating_point()):
        detail = f"{len(values)} distinct integers, {distinct} in"
        _positions(event, source, detail, audit, None if positions else Severity.INFO)


@on("after", "DG108", "DG501", ops=["sin", "cos", "sincos"])
def angles(event: Op, audit: Recorder) -> None:
    """The sine of an angle that is rounded to eighths, or to whole numbers."""
    source = event.inputs[0]
    if source.dtype not in _EXACT or not event.readable or not source.numel() or event.backward:
        return
    if not audit.state(Looks).due("DG108", event.site, event.name):
        return
    largest = float(source.abs().max())
    if not math.isfinite(largest) or largest < 1:
        return
    spacing = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(source.dtype).eps
    if spacing >= _NOISE:
        detail = f"angles up to {largest:g} have a spacing of {spacing:g} in"
        _positions(event, source, detail, audit, None)
        node = audit.lineage.get(source)
        if node is not None:
            audit.blame((node,), f"angles up to {largest:g} have a spacing of {spacing:g} at {event.site}")


def _positions(event: Op, source: Tensor, detail: str, audit: Recorder, severity: Severity | None) -> None:
    facts = {"what": event.site.expression or event.name, "detail": f"{detail} {name_of(event.out.dtype)}"}
    audit.find(
        "DG108", event.site, module=event.module, op=event.name, facts=facts, severity=severity,
        from_dtype=source.dtype, to_dtype=event.out.dtype, bytes=size_of(event.out), origin=audit.origin_of(source),
    )  # fmt: skip


# ---------------------------------------------------------------- DG109

_ARITHMETIC = ["add", "sub", "mul", "neg", "rsub"]
_IN_PLACE = [f"{name}_" for name in _ARITHMETIC]


@on("byte", "DG109")
def bytes_wrap(event: Op, audit: Recorder) -> None:
    out = event.out
    if not isinstance(out, Tensor) or out.dtype is not torch.uint8 or not event.readable or not out.numel():
        return
    if event.name == "bitwise_not" and int(event.inputs[0].max()) == 1:  # 0 and 255 are inverted as they should be
        detail = "of 0 and 1 in uint8 it makes 255 and 254, which both are true"
        _wraps(event, detail, "`~mask.bool()`", audit)
    elif event.name in _ARITHMETIC and trait_of(event.func).pure and _few_times(event.args, event.site, audit):
        _compare(event, event.func(*map(_as_int, event.args), **event.kwargs), audit)


@on("before", "DG109", ops=_IN_PLACE)
def bytes_in_place(args: Any, audit: Recorder) -> Any:
    target = args[0]
    if target.dtype is torch.uint8 and readable(target) and target.numel() and _few_times(args, audit.here(), audit):
        return target.int()
    return None


@on("after", "DG109", ops=_IN_PLACE)
def bytes_changed(event: Op, audit: Recorder) -> None:
    for wide in event.kept or ():
        if isinstance(wide, Tensor) and event.out.dtype is torch.uint8:
            plain = getattr(torch.ops.aten, event.name.rstrip("_"))
            _compare(event, plain(wide, *map(_as_int, event.args[1:]), **event.kwargs), audit)


def _few_times(args: Any, site: Site, audit: Recorder) -> bool:
    return bool(args[0].numel() <= _LARGEST) and audit.state(Looks).due("DG109", site)


def _as_int(value: Any) -> Any:
    return value.int() if isinstance(value, Tensor) and value.dtype is torch.uint8 else value


def _compare(event: Op, again: Tensor, audit: Recorder) -> None:
    wrapped = int((again != event.out).sum()) if again.dtype is torch.int32 else 0
    if wrapped:
        detail = f"{wrapped} of {event.out.numel()} results are outside of 0 to 255 and wrap around"
        _wraps(event, detail, "compute in a wider dtype: `.int()` or `.float()` first", audit)


def _wraps(event: Op, detail: str, advice: str, audit: Recorder) -> None:
    facts = {"what": event.site.expression or event.name, "detail": detail, "advice": advice}
    audit.find(
        "DG109", event.site, module=event.module, op=event.name, facts=facts, from_dtype=torch.uint8,
        bytes=size_of(event.out), origin=audit.origin_of(event.inputs[0]),
    )  # fmt: skip


# ---------------------------------------------------------------- DG111, DG112


@on("start", "DG111", "DG112")
def replace(audit: Recorder) -> None:
    for name, masks in (
        ("multi_head_attention_forward", ("key_padding_mask", "attn_mask")),
        ("scaled_dot_product_attention", ("attn_mask",)),
    ):
        audit.patches.replace(F, name, partial(_attention, audit, masks))
    audit.patches.replace(torch, "tensor", partial(_tensor, audit))


def _attention(audit: Recorder, masks: tuple[str, ...], original: Callable[..., Any]) -> Callable[..., Any]:
    places = {"scaled_dot_product_attention": {3: "attn_mask"}}.get(original.__name__, {})

    @wraps(original)
    def attention(*args: Any, **kwargs: Any) -> Any:
        if audit.live and not audit.local.paused:
            for name, mask in (*((places.get(n), a) for n, a in enumerate(args)), *kwargs.items()):
                if name in masks and isinstance(mask, Tensor) and mask.is_floating_point():
                    audit.guarded(_look_at_mask, audit, name, mask, original.__name__)
        return original(*args, **kwargs)

    return attention


def _look_at_mask(audit: Recorder, name: str, mask: Tensor, function: str) -> None:
    site = audit.here()
    if not readable(mask) or mask.numel() > _LARGEST or not audit.state(Looks).due("DG111", site, name):
        return
    ones = int((mask == 1).sum())
    if ones and ones + int((mask == 0).sum()) == mask.numel() != ones:
        caution = "; where 1 means keep, `~` it for `key_padding_mask`" if name == "key_padding_mask" else ""
        facts = {"argument": name, "function": function, "dtype": name_of(mask.dtype), "caution": caution}
        audit.find(
            "DG111", site, module=audit.module(), op=function, facts=facts, from_dtype=mask.dtype, to_dtype=torch.bool,
            bytes=size_of(mask), origin=audit.origin_of(mask),
        )  # fmt: skip


def _tensor(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if audit.live and made.dtype is torch.float64 and kwargs.get("dtype") is None:
            audit.guarded(_look_at_elements, audit, args, kwargs, made)
        return made

    return tensor


def _look_at_elements(audit: Recorder, args: Any, kwargs: Any, made: Tensor) -> None:
    value = args[0] if args else kwargs.get("data")
    while isinstance(value, (list, tuple)) and value:
        odd = [part for part in value if type(part).__module__ == "numpy"]
        value = odd[0] if odd else value[0]
    if (
        torch.get_default_dtype() is not torch.float64
        and type(value).__module__ == "numpy"
        and not hasattr(value, "__len__")
    ):
        site, default = audit.here(), name_of(torch.get_default_dtype())
        facts = {"what": site.expression or "torch.tensor", "default": default, "default_code": f"torch.{default}"}
        audit.find(
            "DG112", site, module=audit.module(), op="tensor", facts=facts, to_dtype=torch.float64, bytes=size_of(made)
        )
