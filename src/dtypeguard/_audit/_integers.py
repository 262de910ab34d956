"""DG108, DG109, DG112: integers that are rounded, wrap around, or make float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .._dtypes import name_of
from .._rules import Severity
from ._events import Op, on, readable
from ._lineage import Cause, Node
from ._looks import LARGEST, Looks
from ._operations import trait_of
from ._recorder import Recorder
from ._sites import Site
from ._text import size_of

_EXACT = {torch.bfloat16: 256, torch.float16: 2048}  # integers up to here have one value each
_NOISE = 0.125  # the spacing of angles from which on their sine is none
_ELEMENTS = 1000


# ---------------------------------------------------------------- DG108


@dataclass(eq=False)
class Collision(Cause):
    """Integers that became equal; it harms where they are used as integers again, or as angles."""

    site: Site
    facts: dict[str, Any]
    fields: dict[str, Any]

    def blame(self, audit: Recorder, effect: str) -> None:
        audit.find("DG108", self.site, facts={**self.facts, "effect": f": {effect}"}, **self.fields)


@on("cast", "DG108")
def integers_cast(event: Op, audit: Recorder) -> None:
    source, out = event.inputs[0], event.out
    if event.backward:
        return
    if source.dtype in (*_EXACT, torch.float32) and not out.dtype.is_floating_point and out.dtype is not torch.bool:
        _used(source, f"used as integers at {event.site}", audit)
    if _due(event, source, audit) and (not source.is_floating_point() or bool((source == source.round()).all())):
        _collide(event, source, source.to(out.dtype), audit)


@on("mixed", "DG108")
def integers_promoted(event: Op, audit: Recorder) -> None:
    for source in event.kept:
        if not source.is_floating_point() and _due(event, source, audit):
            _collide(event, source, source.to(event.out.dtype), audit)


@on("after", "DG108", ops=["arange"])
def integers_made(event: Op, audit: Recorder) -> None:
    if _due(event, None, audit):
        _collide(event, torch.arange(event.out.numel()) + _EXACT[event.out.dtype], event.out, audit)


@on("after", "DG108", ops=["cumsum"])
def integers_summed(event: Op, audit: Recorder) -> None:
    source = event.inputs[0]
    if _due(event, None, audit) and bool((source == source.round()).all()):
        _collide(event, source.double().cumsum(event.args[1]), event.out, audit)


def _due(event: Op, source: Tensor | None, audit: Recorder) -> bool:
    """Whether to look at the half numbers that are made here, from others or anew."""
    if event.out.dtype not in _EXACT or not 1 < event.out.numel() <= LARGEST:
        return False
    if source is not None and (source.dtype in (*_EXACT, torch.bool) or source.is_complex()):
        return False
    return event.readable and audit.state(Looks).due("DG108", event.site)


def _collide(event: Op, exact: Tensor, rounded: Tensor, audit: Recorder) -> None:
    if not exact.numel() or not _EXACT[event.out.dtype] < float(exact.abs().max()) < math.inf:  # nor NaN
        return
    there, left = len(torch.unique(exact)), len(torch.unique(rounded))
    if left < there:
        facts, fields = _facts(event, f"{there} distinct integers, {left} in", audit)
        audit.find("DG108", event.site, facts=facts, severity=Severity.INFO, **fields)
        node = audit.lineage.get(event.out)
        if node is not None:
            node.cause = Collision(event.site, facts, fields)


def _used(tensor: Tensor, effect: str, audit: Recorder) -> None:
    node = audit.lineage.get(tensor)
    if node is not None:
        audit.blame((node,), effect, Collision)


@on("after", "DG108", "DG501", ops=["sin", "cos", "sincos"])
def angles(event: Op, audit: Recorder) -> None:
    """The sine of an angle that is rounded to eighths, or to whole numbers."""
    source = event.inputs[0]
    if event.backward:
        return
    _used(source, f"used as angles at {event.site}", audit)
    if source.dtype not in _EXACT or not event.readable or not source.numel():
        return
    if not audit.state(Looks).due("DG108", event.site, event.name):
        return
    largest = float(source.abs().max())
    if not 1 <= largest < math.inf:
        return
    spacing = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(source.dtype).eps
    if spacing >= _NOISE:
        says = f"angles up to {largest:g} have a spacing of {spacing:g}"
        facts, fields = _facts(event, f"{says} in", audit)
        audit.find("DG108", event.site, facts=facts, **fields)
        node = audit.lineage.get(source)
        if node is not None:
            audit.blame((node,), f"{says} at {event.site}")


def _facts(event: Op, detail: str, audit: Recorder) -> tuple[dict[str, Any], dict[str, Any]]:
    source = event.inputs[0] if event.inputs else event.out
    what = event.site.expression or event.name
    facts = {"what": what, "detail": f"{detail} {name_of(event.out.dtype)}", "effect": ""}
    fields = {
        "module": event.module, "op": event.name, "from_dtype": source.dtype, "to_dtype": event.out.dtype,
        "bytes": size_of(event.out), "origin": audit.origin_of(source),
    }  # fmt: skip
    return facts, fields


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
    return bool(args[0].numel() <= LARGEST) and audit.state(Looks).due("DG109", site)


def _as_int(value: Any) -> Any:
    return value.int() if isinstance(value, Tensor) and value.dtype is torch.uint8 else value


def _compare(event: Op, again: Tensor, audit: Recorder) -> None:
    wrapped = int((again != event.out).sum()) if again.dtype is torch.int32 else 0
    if wrapped:
        detail = f"{wrapped} of {event.out.numel()} results are outside of 0 to 255 and wrap around"
        _wraps(event, detail, "compute in a wider dtype: `.int()` or `.float()` first", audit)


def _wraps(event: Op, detail: str, advice: str, audit: Recorder, severity: Severity | None = None) -> None:
    facts = {"what": event.site.expression or event.name, "detail": detail, "advice": advice}
    audit.find(
        "DG109", event.site, module=event.module, op=event.name, facts=facts, severity=severity,
        from_dtype=event.inputs[0].dtype, to_dtype=event.out.dtype, bytes=size_of(event.out),
        origin=audit.origin_of(event.inputs[0]),
    )  # fmt: skip


@on("cast", "DG109")
def out_of_range(event: Op, audit: Recorder) -> None:
    """A picture that is saved without a clamp, labels of which one is -100, sound at full scale."""
    source, dtype = event.inputs[0], event.out.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool or source.dtype in (torch.bool, dtype):
        return
    if source.is_complex() or not event.readable or source.numel() > LARGEST or event.kind == "device":
        return
    if not source.is_floating_point() and source.dtype.itemsize == dtype.itemsize:  # bits that are packed
        return
    if not audit.state(Looks).due("DG109", event.site) or _is_unpacked(audit.lineage.get(source)):
        return
    ends = torch.iinfo(dtype)
    whole = source.double().trunc() if source.is_floating_point() else source.long()
    outside = int((((whole < ends.min) | (whole > ends.max)) & whole.isfinite()).sum())
    if outside:
        detail = f"{outside} of {source.numel()} values are outside of {ends.min} to {ends.max} and wrap around"
        meant = not source.is_floating_point() and dtype is not torch.uint8
        advice = f"`.clamp({ends.min}, {ends.max})` before the cast"
        _wraps(event, detail, advice, audit, Severity.INFO if meant else None)


def _is_unpacked(node: Node | None) -> bool:
    """Whether bits were taken apart: what they are cast to is meant."""
    return node is not None and node.op.startswith(("bitwise_", "__rshift__", "__lshift__", "__and__"))


# ---------------------------------------------------------------- DG112


@on("start", "DG112")
def replace(audit: Recorder) -> None:
    audit.patches.replace(torch, "tensor", partial(_tensor, audit))


def _tensor(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if audit.live and made.dtype is torch.float64 and kwargs.get("dtype") is None:
            audit.guarded(_look_at_elements, audit, args, kwargs, made)
        return made

    return tensor


def _look_at_elements(audit: Recorder, args: Any, kwargs: Any, made: Tensor) -> None:
    default = torch.get_default_dtype()
    if default is not torch.float64 and any(map(_is_scalar, islice(_elements(*args[:1], **kwargs), _ELEMENTS))):
        site, name = audit.here(), name_of(default)
        facts = {"what": site.expression or "torch.tensor", "default": name, "default_code": f"torch.{name}"}
        fields = {"module": audit.module(), "op": "tensor", "to_dtype": torch.float64, "bytes": size_of(made)}
        audit.find("DG112", site, facts=facts, **fields)


def _elements(data: Any = None, **_: Any) -> Any:
    if isinstance(data, (list, tuple)):
        for part in data:
            yield from _elements(part)
    else:
        yield data


def _is_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and not hasattr(value, "__len__")
