"""DG106 fraction-lost."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._kit import (
    LARGEST,
    Node,
    Op,
    Recorder,
    Rule,
    Severity,
    around,
    asked_for,
    name_of,
    of,
    on,
    readable,
    size_of,
    some,
)
from ._writes import expression, source_of

RULE = Rule(
    "DG106",
    "fraction-lost",
    Severity.WARNING,
    summary="Fractions are lost in an integer tensor.",
    says="`{what}` {writes} {source} {into} {dtype}: {loss}",
    fix="{advice}",
    why=(
        "Writing into an integer tensor truncates towards zero, without a word. So does a cast to integers, which is "
        "reported where all values lie between -1 and 1, as probabilities and sines do: nearly all become 0. Where "
        "negative values are cut too, as in `(points / size).int()`, the cell at 0 is twice as wide as the others, "
        "which is an info. Values that are all meant to be whole, as prices in cents, are cut to the one below where "
        "a rounding made one a little less: `0.29 * 100` is 28.999999999999996. Integers of 8 bits that are to hold "
        "float8, as scales of checkpoints are stored, get its values and not its bits."
    ),
    unsafe=("copy_bits", "round_first", "fitting_target"),
    sampled=True,
    sources=("https://github.com/pytorch/pytorch/issues/126000",),
)

_ROUND = "round first, as all values are meant to be whole: `.round()` before the cast"
_FEW = 8  # values, of which some chance to lie between -1 and 1
_NEAR = 3  # lines back
_JUST = 4  # roundings below a whole number
_WHOLE = 0.9  # of the values: those that are so near to a whole number, if all are meant to be
_FINE = 2.0**-10  # roundings are less than this, or any value is near to a whole number


@on("write", RULE)
def written(event: Op, audit: Recorder) -> None:
    source, out = source_of(event, audit), event.out
    if source is None or not source.is_floating_point() or not _is_integer(out) or not source.numel():
        return
    looked = some(source)
    lost = int((looked != looked.trunc()).sum())
    if lost:
        facts = _facts_of(f"{name_of(source.dtype)} values", f"{of(lost, looked, source)} lose their fraction", out)
        small = source.numel() >= _FEW and float(looked.abs().max()) <= 1  # of which nothing is left
        severity = Severity.INFO if out.dtype is torch.uint8 and not small else None  # pictures
        audit.suspect(RULE, event, source, what=expression(event), **facts).find(audit, severity)


@on("cast", RULE)
def cast(event: Op, audit: Recorder) -> None:
    """Values of which nothing is left, or that are cut towards zero from both sides."""
    source, out = event.inputs[0], event.out
    if not source.is_floating_point() or not _is_integer(out) or not source.numel():
        return
    node = audit.lineage.get(source)
    inside = node is not None and node.site is event.site  # `quantile` makes places of its own
    if inside or event.backward or not event.readable or not audit.due("DG106", event.site):
        return
    looked, what = some(source.detach()), f"{name_of(source.dtype)} values"
    if not _is_quotient(node) and (below := just_below(looked)):
        count, value = below
        loss = f"{of(count, looked, source)} are a rounding below a whole number: {value!r} becomes {int(value)}"
        facts = _facts_of(what, loss, out, "casts", "to")
        facts["advice"] = _ROUND
        audit.suspect(RULE, event, source, **facts).find(audit)
        return
    cut, size = looked != looked.trunc(), float(looked.abs().max())
    lost = int(cut.sum())
    if lost < looked.numel() / 2 or not math.isfinite(size) or source.numel() < _FEW:
        return
    if size <= 1:
        loss = f"{of(lost, looked, source)} lie between -1 and 1, and become 0"
        facts = _facts_of(what, loss, out, "casts", "to", "keep them in a floating dtype")
        suspect = audit.suspect(RULE, event, source, **facts)
        suspect.fields["origin"] = (*suspect.fields["origin"], *asked_for(event.site, name_of(out.dtype)))
        suspect.find(audit)
    elif out.dtype in (torch.int32, torch.int64) and lost / 8 < (negative := int((cut & (looked < 0)).sum())) < lost:
        loss = f"{negative} negative ones are cut towards 0, so that those between -1 and 1 become equal"
        facts = _facts_of(what, loss, out, "casts", "to", "`.floor()` first, where they are cells of a grid")
        audit.suspect(RULE, event, source, **facts).find(audit, Severity.INFO)


def _is_quotient(node: Node | None) -> bool:
    """Whether integers were divided: of these the number below may be meant."""
    nodes = () if node is None or node.op != "div" else (node, *node.ancestors(_NEAR))
    return any(not one.dtype.is_floating_point for one in nodes)


def just_below(values: Tensor) -> tuple[int, float] | None:
    """How many values of those that are meant to be whole are cut to the number below, and one: `(29 / 100) * 100`."""
    near, size = values.round(), values.abs()
    just = _JUST * torch.finfo(values.dtype).eps * size
    close = ((values - near).abs() <= just) & (just < _FINE)
    cut = close & (values.trunc() != near)
    count = int(cut.sum())
    if not count or int(close.sum()) < _WHOLE * values.numel():
        return None
    return count, float(values[cut][0])


@on("write", RULE)
@on("cast", RULE)
def stored(event: Op, audit: Recorder) -> None:
    """`held.copy_(scale)` of float8: integers of 8 bits store its bits, and are given its values."""
    out, source = event.out, next((t for t in event.inputs if t.dtype is not event.out.dtype), None)
    if source is None or not source.is_floating_point() or not _is_integer(out) or audit.local.loading:
        return
    if not (source.dtype.itemsize == out.dtype.itemsize == 1 and 0 < source.numel() <= LARGEST):
        return
    values = source.float()  # which has arithmetic
    if readable(values, out) and (lost := int((values != values.trunc()).sum())):
        writes = ("writes", "into") if any(out is one for one in event.inputs) else ("casts", "to")
        loss = f"{lost} of {source.numel()} lose their fraction"
        facts = _facts_of(f"{name_of(source.dtype)} values", loss, out, *writes)
        facts["advice"] = f"copy the bits, if they are meant: `.view(torch.{name_of(out.dtype)})`"
        audit.suspect(RULE, event, source, what=expression(event), **facts).find(audit)


@around(torch, "tensor", rule=RULE)
def _made(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
    """`torch.tensor([[0.299, 0.587, 0.114]], dtype=image.dtype)`"""
    out: Tensor = original(*args, **kwargs)
    audit.guarded(_numbers, audit, args[:1], out)
    return out


@around(Tensor, "new_tensor", rule=RULE)
def _made_like(audit: Recorder, original: Callable[..., Any], like: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`labels.new_tensor([0.2, 0.8])`, which has the labels' dtype."""
    out: Tensor = original(like, *args, **kwargs)
    audit.guarded(_numbers, audit, args[:1], out, "dtype" not in kwargs)
    return out


def _numbers(audit: Recorder, given: tuple[Any, ...], out: Any, implied: bool = False) -> None:
    """Numbers that are given an integer dtype; `implied` is one that nobody has written."""
    if not given or not isinstance(out, Tensor) or not _is_integer(out) or not 0 < out.numel() <= LARGEST:
        return
    source = None if isinstance(given[0], Tensor) or not readable(out) else torch.tensor(given[0])
    if source is None or not source.is_floating_point():
        return
    lost = int((source != source.trunc()).sum())
    if lost and bool(source.isfinite().all()):
        site, none = audit.here(), float(source.abs().max()) <= 1
        loss = f"{lost} of {source.numel()} lose their fraction" + ", and become 0" * none
        facts = {"what": site.expression or site.source, **_facts_of("numbers", loss, out, advice="keep them floats")}
        severity = None if none or implied else Severity.INFO
        audit.find(
            RULE, facts=facts, severity=severity, site=site, module=audit.module(), op="tensor", to_dtype=out.dtype,
            bytes=size_of(out), origin=asked_for(site, name_of(out.dtype)),
        )  # fmt: skip


@around(Tensor, "__setitem__", rule=RULE)
def _assignment(audit: Recorder, original: Callable[..., Any], self: Tensor, key: Any, value: Any) -> None:
    """`labels[1] = 0.9`: PyTorch makes the number an integer before it dispatches anything."""
    if isinstance(value, float) and not self.dtype.is_floating_point:
        audit.guarded(_number, audit, self, value)
    original(self, key, value)


def _number(audit: Recorder, target: Tensor, value: float) -> None:
    if _is_integer(target) and _fraction(value):
        site = audit.here()
        _report_fraction(audit, site.source, value, target, site=site, module=audit.module(), op="__setitem__")


_FILLS = "fill masked_fill index_fill scatter".split()
_FILLS += [f"{name}_" for name in _FILLS] + "full full_like new_full constant_pad_nd".split()


@on("after", RULE, ops=_FILLS)
def filled(event: Op, audit: Recorder) -> None:
    """A number with a fraction, for an integer tensor."""
    out = event.out
    if not isinstance(out, Tensor) or not _is_integer(out) or not readable(out):
        return
    values = [v for v in (*event.args, *event.kwargs.values()) if isinstance(v, float)]
    values += [float(t) for t in event.inputs if t.ndim == 0 and t.dtype.is_floating_point and readable(t)]
    for value in [value for value in values if _fraction(value)][:1]:
        fields = {"site": event.site, "module": event.module, "op": event.name, "bytes": size_of(out)}
        _report_fraction(audit, event.what, value, out, **fields)


def _report_fraction(audit: Recorder, what: str, value: float, target: Tensor, **fields: Any) -> None:
    facts = {"what": what, **_facts_of(f"{value:g}", f"it becomes {int(value)}", target)}
    severity = Severity.INFO if target.dtype is torch.uint8 and abs(value) > 1 else None  # of a picture
    audit.find(RULE, facts=facts, severity=severity, to_dtype=target.dtype, **fields)


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool


def _fraction(value: float) -> bool:
    return math.isfinite(value) and value != int(value)


def _facts_of(
    source: str, loss: str, target: Tensor, writes: str = "writes", into: str = "into",
    advice: str = "allocate the target with a floating dtype",
) -> dict[str, Any]:  # fmt: skip
    dtype = name_of(target.dtype)
    advice = f"{advice}, or, where whole numbers are meant, `.round().to(torch.{dtype})`"
    return {"source": source, "loss": loss, "dtype": dtype, "writes": writes, "into": into, "advice": advice}
