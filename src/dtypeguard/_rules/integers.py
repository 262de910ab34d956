"""DG108, DG109, DG112: integers that are rounded, wrap around, or make float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .._base.dtypes import name_of
from .._watch.events import Op, on, readable
from .._watch.lineage import Cause, Debt, Node
from .._watch.looks import LARGEST, Looks
from .._watch.operations import trait_of
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.sites import Site
from .._watch.text import size_of

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


# ---------------------------------------------------------------- DG109: arithmetic

_ARITHMETIC = ["add", "sub", "mul", "neg", "rsub"]
_IN_PLACE = [f"{name}_" for name in _ARITHMETIC]
_NARROW = frozenset([torch.uint8, torch.int8, torch.int16, torch.int32])
_BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
_BITS += "__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__".split()
_BITS += [f"{name}_" for name in _BITS if not name.startswith("__")]


@dataclass(eq=False)
class Wrapped(Debt):
    """Results of one line that wrapped around; nobody's mistake where bits are taken from them, as hashes do."""

    multiplies: bool
    facts: dict[str, Any]
    fields: dict[str, Any]
    count: int = 0


_SCATTERED = Debt()  # of what a hash has made
_NEAR = 8  # lines back


@dataclass
class Wraps:
    rows: dict[tuple[Any, ...], Wrapped] = field(default_factory=dict)


@on("integer", "DG109")
def integers_wrap(event: Op, audit: Recorder) -> None:
    out = event.out
    if not isinstance(out, Tensor) or out.dtype not in _NARROW or not event.readable or not out.numel():
        return
    if event.name in _ARITHMETIC and trait_of(event.func).pure and _few_times(event.args, event.site, audit):
        _compare(event, event.func(*map(_widened, event.args), **event.kwargs), audit)


@on("before", "DG109", ops=_IN_PLACE)
def integers_in_place(args: Any, audit: Recorder) -> Any:
    target = args[0]
    if target.dtype in _NARROW and readable(target) and target.numel() and _few_times(args, audit.here(), audit):
        return target.long()
    return None


@on("after", "DG109", ops=_IN_PLACE)
def integers_changed(event: Op, audit: Recorder) -> None:
    for wide in event.kept or ():
        if isinstance(wide, Tensor) and event.out.dtype in _NARROW:
            plain = getattr(torch.ops.aten, event.name.rstrip("_"))
            _compare(event, plain(wide, *map(_widened, event.args[1:]), **event.kwargs), audit)


def _few_times(args: Any, site: Site, audit: Recorder) -> bool:
    return bool(args[0].numel() <= LARGEST) and audit.state(Looks).due("DG109", site)


def _widened(value: Any) -> Any:
    return value.long() if isinstance(value, Tensor) and value.dtype in _NARROW else value


def _compare(event: Op, again: Tensor, audit: Recorder) -> None:
    wrapped = int((again != event.out).sum()) if again.dtype is torch.int64 else 0
    if not wrapped or _is_meant(event, audit):
        return
    dtype, rows = event.out.dtype, audit.state(Wraps).rows
    row = rows.get((event.site, event.module, dtype))
    if row is None:
        ends = torch.iinfo(dtype)
        detail = f"{wrapped} of {again.numel()} results are outside of {ends.min} to {ends.max} and wrap around"
        wider = "long" if dtype is torch.int32 else "int"
        facts, fields = _wrapping(event, detail, f"compute in a wider dtype: `.{wider}()` or `.float()` first", audit)
        row = rows[event.site, event.module, dtype] = Wrapped(event.name.startswith("mul"), facts, fields)
    row.count += 1
    node = audit.lineage.get(event.out)
    if node is not None:
        node.owes((row,))


def _is_meant(event: Op, audit: Recorder) -> bool:
    """Hashes and random numbers: large odd factors, bits, products that are multiplied again."""
    multiplies = event.name.startswith("mul")
    if multiplies and any(_scatters(value, event.out) for value in event.args):
        node = audit.lineage.get(event.out)
        if node is not None:
            node.owes((_SCATTERED,))
        return True
    for node in map(audit.lineage.get, event.inputs):
        if node is None:
            continue
        nodes = list(node.ancestors(most=_NEAR))
        again = next((n for n, ancestor in enumerate(nodes) if ancestor.site is event.site), None)
        if again is not None and (multiplies or any(ancestor.op == "mul" for ancestor in nodes[:again])):
            return True
        if _is_unpacked(node) or _SCATTERED in node.debts:
            return True
        for debt in node.debts if event.name.endswith("_") else ():
            if isinstance(debt, Wrapped) and debt.multiplies:
                debt.settled = True
                return True
    return False


def _scatters(value: Any, out: Tensor) -> bool:
    """Whether to multiply by it is to scatter: the factors of hashes are large, and odd so that they lose nothing."""
    least = max(64, 2 ** (4 * out.dtype.itemsize - 2))
    if isinstance(value, Tensor):
        constant = value.numel() < out.numel() or not value.ndim
        return constant and bool(((value % 2 == 1) & (value.long().abs() > least)).all())
    return isinstance(value, int) and value % 2 == 1 and abs(value) > least


@on("after", "DG109", ops=_BITS)
def bits_are_taken(event: Op, audit: Recorder) -> None:
    for tensor in event.inputs:
        node = audit.lineage.get(tensor) if audit.state(Wraps).rows else None
        for debt in () if node is None else node.debts:
            debt.settled |= isinstance(debt, Wrapped)


@on("end", "DG109")
def judge(audit: Recorder) -> None:
    for row in audit.state(Wraps).rows.values():
        finding = None if row.settled else audit.find("DG109", facts=row.facts, **row.fields)
        if finding is not None:
            finding.count += row.count - 1


def _wraps(event: Op, detail: str, advice: str, audit: Recorder, severity: Severity | None = None) -> None:
    facts, fields = _wrapping(event, detail, advice, audit)
    audit.find("DG109", facts=facts, severity=severity, **fields)


def _wrapping(event: Op, detail: str, advice: str, audit: Recorder) -> tuple[dict[str, Any], dict[str, Any]]:
    facts = {"what": event.site.expression or event.name, "detail": detail, "advice": advice}
    fields = {
        "site": event.site, "module": event.module, "op": event.name, "from_dtype": event.inputs[0].dtype,
        "to_dtype": event.out.dtype, "bytes": size_of(event.out), "origin": audit.origin_of(event.inputs[0]),
    }  # fmt: skip
    return facts, fields


# ---------------------------------------------------------------- DG109: masks

_COPIES = frozenset("bitwise_not _to_copy cat stack index repeat clone".split())
# What takes it for a mask: bits that were flipped on purpose go to operations on bits.
_AS_MASK = frozenset("_to_copy mul mul_ sum mean any all ne logical_not logical_and logical_or logical_xor".split())
_BY_INDEX = frozenset(["index", "index_put", "index_put_"])


@dataclass(eq=False)
class Inverted(Cause):
    """A mask of 0 and 1 of which the bits were flipped."""

    facts: dict[str, Any]
    fields: dict[str, Any]
    said: bool = False

    def blame(self, audit: Recorder, effect: str) -> None:
        """Its dtype is as it was."""


@on("after", "DG109", ops=["bitwise_not"])
def mask_inverted(event: Op, audit: Recorder) -> None:
    source, node = event.inputs[0], audit.lineage.get(event.out)
    if source.dtype is torch.bool or node is None or not event.readable or not 0 < source.numel() <= LARGEST:
        return
    least, most = source.aminmax()
    if int(least) < 0 or int(most) != 1:  # 0 and 255 are inverted as they should be
        return
    zero = torch.iinfo(source.dtype).max if source.dtype is torch.uint8 else -1
    detail = f"of 0 and 1 in {name_of(source.dtype)} it makes {zero} and {zero - 1}, which both are true"
    node.cause = Inverted(*_wrapping(event, detail, "`~mask.bool()`", audit))
    audit.integers.add(source.dtype)


@on("integer", "DG109")
def mask_used(event: Op, audit: Recorder) -> None:
    """Only what takes it for a mask shows that it was meant as one."""
    name, out = event.name, event.out
    if name in _AS_MASK and not (name == "_to_copy" and out.dtype in audit.integers):
        found = event.inputs
    elif name in _BY_INDEX:
        found = [index for index in event.args[1] if index is not None and _is_mask_of(event.args[0], index)]
    else:
        return
    for tensor in found:
        inverted = _inverted(audit.lineage.get(tensor))
        if inverted is not None and not inverted.said:
            inverted.said = True
            audit.find("DG109", facts=inverted.facts, **inverted.fields)


def _is_mask_of(tensor: Tensor, index: Tensor) -> bool:
    return index.dtype is torch.uint8 or (index.numel() > 2 and index.shape == tensor.shape[: index.ndim])


def _inverted(node: Node | None) -> Inverted | None:
    while node is not None and node.op in _COPIES:
        if isinstance(node.cause, Inverted):
            return node.cause
        node = node.parents[0] if node.parents else None
    return None


# ---------------------------------------------------------------- DG109: casts


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
