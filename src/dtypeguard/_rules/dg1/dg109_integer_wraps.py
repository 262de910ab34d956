"""DG109 integer-wraps."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._engine.integers import IN_PLACE, INTEGERS, OUT_OF_PLACE, PRODUCTS, SHIFTS, exact, outside, sampled
from ..._engine.ops import NARROW, operator_of
from ..._engine.watch.lineage import FIRST, Debt
from .._kit import Node, Op, Recorder, Rule, Severity, Suspect, name_of, of, on, readable, some
from ._writes import at_target, expression, source_of

RULE = Rule(
    "DG109",
    "integer-wraps",
    Severity.WARNING,
    summary="Integer arithmetic overflows and wraps around.",
    says="`{what}`: {detail}",
    at_birth=True,
    fix="{advice}",
    why=(
        "Integer arithmetic wraps around without a word: in uint8, 3 - 5 is 254; in int16, 300 * 300 is 24464; in "
        "int64, 128**9 is negative. A float that is outside of the range of an integer dtype becomes any number in it. "
        "`~` on an integer mask flips bits: 1 becomes -2 (254 in uint8) and 0 becomes -1 (255), and all of these count "
        "as true. In bool, `True + True` is True, so a count of votes stays at one."
    ),
    unsafe=(
        "bool_before_inverted",
        "count_in_int64",
        "clamp_first",
        "whole_in_int64",
        "clamped_integers",
        "votes_in_integers",
        "wider_integers",
        "wider_target",
    ),
    sampled=True,
    sources=("https://github.com/pytorch/pytorch/issues/24180",),
)

# ---------------------------------------------------------------- arithmetic

_BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
_BITS += "__and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__".split()
_BITS += [f"{name}_" for name in _BITS if not name.startswith("__")]
_REMAINDERS = "remainder remainder_ fmod fmod_".split()
_QUOTIENTS = "div div_ floor_divide floor_divide_".split()


@dataclass(eq=False)
class Wrapped(Debt):
    """Results of one line that wrapped around; nobody's mistake where bits are taken from them, as hashes do."""

    multiplies: bool
    suspect: Suspect
    count: int = 0
    hashes: bool = False  # it looks as if it was meant
    below: int = 0  # of a product: none of its factors is negative, or as large
    factor: int | None = None  # a number of the program's that it multiplied by
    reduced: bool = False  # what was multiplied is taken apart again: what wrapped has another remainder and quotient


TARGET = "create the target with"
_SCATTERED = Debt()  # of what a hash has made
_NEAR = 8  # lines back
_FEW = 4096  # numbers
_MANY = 2**24  # values of a sparse tensor
_NEARLY = 0.25  # of the largest number: what may be outside before the next look
_COMPARES = frozenset("lt le gt ge".split())
_SIGNED = 0.25  # of values that are outside, from which on the sign of the dtype is wrong


@dataclass
class Wraps:
    rows: dict[tuple[Any, ...], Wrapped] = field(default_factory=dict)


@on("integer", RULE)
def integers_wrap(event: Op, audit: Recorder) -> None:
    out, name = event.out, event.name
    if name in OUT_OF_PLACE and isinstance(out, Tensor) and out.dtype in INTEGERS and _few_times(event, audit):
        operator = operator_of(event.func)
        fewer = sampled(name, event.args, out) if operator.pure else None
        if fewer is not None:
            args, looked = fewer
            _compare_wide(event, looked, exact(operator, event.func, args, event.kwargs), args, audit)


@on("after", RULE, ops=["_coalesce"])
def duplicates_are_added(event: Op, audit: Recorder) -> None:
    """Values of a sparse tensor at the same place, in their own dtype."""
    values = event.inputs[0]._values()
    if values.dtype in INTEGERS and 0 < values.numel() <= _MANY and audit.due("DG109", event.site, event.name):
        places, shape = event.inputs[0]._indices(), event.out.shape
        wide = torch.sparse_coo_tensor(places, values.double(), shape, check_invariants=False).coalesce()
        _compare_wide(event, event.out._values(), wide.values(), event.args, audit)


@on("before", RULE, ops=IN_PLACE)
def integers_in_place(args: Any, audit: Recorder) -> Any:
    """What is written to; of few numbers each time, for a total is outside at once and stays there."""
    target = args[0]
    if target.dtype not in INTEGERS or not readable(target) or not target.numel() or target.is_mps:
        return None
    total = target.dtype in NARROW and target.numel() <= _FEW
    return some(target).double() if total or audit.due("DG109", audit.here()) else None


@on("after", RULE, ops=IN_PLACE)
def integers_changed(event: Op, audit: Recorder) -> None:
    for wide in event.kept or ():
        if isinstance(wide, Tensor) and event.out.dtype in INTEGERS:
            operator, plain = operator_of(event.func), getattr(torch.ops.aten, event.name.rstrip("_"))
            fewer = sampled(event.name.rstrip("_"), event.args, event.out)
            if fewer is not None:
                args = (wide, *fewer[0][1:])
                _compare_wide(event, fewer[1], exact(operator, plain, args, event.kwargs), args, audit)


def _few_times(event: Op, audit: Recorder) -> bool:
    """Whether to look at this call of a line."""
    out: Tensor = event.out
    return out.numel() > 0 and event.readable and not out.is_mps and audit.due("DG109", event.site, event.name)


def _compare_wide(event: Op, out: Tensor, wide: Tensor, args: Any, audit: Recorder) -> None:
    wrapped, whole = int(outside(operator_of(event.func), out, wide).sum()), event.out
    whole = whole._values() if whole.is_sparse else whole
    if not wrapped and out.dtype in NARROW and wide.abs().amax() > _NEARLY * torch.iinfo(out.dtype).max:
        audit.looks.closely("DG109", event.site, event.name)
    if not wrapped or _are_steps(event, out, wide):
        return
    meant, below = _is_meant(event, audit), _below(event, args)
    if meant and not below:
        return
    dtype, rows = event.out.dtype, audit.state(Wraps).rows
    row = rows.get((event.site, event.module, dtype))
    if row is None:
        detail = f"{of(wrapped, out, whole)} results are outside of {_range(dtype)} and wrap around"
        suspect = wrapping(event, detail, _wider(dtype, event), audit)
        row = rows[event.site, event.module, dtype] = Wrapped(event.name in PRODUCTS, suspect, hashes=meant)
    row.count, row.below = row.count + 1, below
    row.factor = next((value for value in event.args if row.multiplies and isinstance(value, int)), None)
    node = audit.lineage.get(event.out)
    if node is not None and not _falls_off(event, args):
        node.owes((row,))


def _are_steps(event: Op, out: Tensor, wide: Tensor) -> bool:
    """Whether a counter of bytes has started anew between neighbours, whose difference is right modulo 256."""
    if event.name != "sub" or out.dtype.is_signed or out.ndim != 1 or len(event.inputs) != 2:
        return False
    one, other = (tensor.untyped_storage().data_ptr() for tensor in event.inputs)
    return one == other and bool((wide[wide < 0] < torch.iinfo(out.dtype).max / -2).all())


def _below(event: Op, args: Any) -> int:
    """What the factors of a product are less than, as numbers modulo this are; 0 where they are none."""
    if not event.name.startswith("mul") or event.out.dtype is torch.int64:
        return 0
    ends = [(v.amin(), v.amax()) if isinstance(v, Tensor) else (v, v) for v in args[:2]]
    return 1 + int(max(most for _, most in ends)) if min(least for least, _ in ends) >= 0 else 0


def _falls_off(event: Op, args: Any) -> bool:
    """Whether numbers are shifted by all bits of their dtype, or more, which nobody means."""
    bits = torch.iinfo(event.out.dtype).bits
    return event.name in SHIFTS and bool(torch.as_tensor((args[0] != 0) & (args[1] >= bits)).any())


def _wider(dtype: torch.dtype, event: Op) -> str:
    if event.kwargs.get("dtype") is not None and dtype is not torch.int64:
        return f"leave out `dtype=`: `{event.name}` of integers is int64"
    if event.name in IN_PLACE and dtype is not torch.int64:
        return f"{TARGET} `dtype=torch.int64`, or clamp before the write"
    if dtype is torch.int64:
        return "PyTorch has no wider integer: sort or compare by several columns, or compute with integers of Python"
    wider = "`.long()`" if dtype is torch.int32 else "`.int()` or `.float()`"  # float32 has no integers above 2**24
    return f"take a wider dtype: {wider} first"


def _range(dtype: torch.dtype) -> str:
    ends = torch.iinfo(dtype)
    return "-2**63 to 2**63 - 1" if dtype is torch.int64 else f"{ends.min} to {ends.max}"


def _is_meant(event: Op, audit: Recorder) -> bool:
    """Hashes and random numbers: large odd factors, bits, products that are multiplied again."""
    multiplies = event.name in PRODUCTS
    if event.name == "sum" and event.out.dtype is event.inputs[0].dtype is torch.uint8:  # which somebody asked for
        return True
    if multiplies and any(_scatters(value, event.out) for value in event.args):
        node = audit.lineage.get(event.out)
        if node is not None:
            node.owes((_SCATTERED,))
        return True
    for node in map(audit.lineage.get, event.inputs):
        if node is None:
            continue
        nodes = [ancestor for ancestor in node.ancestors(most=_NEAR) if ancestor.op != FIRST]  # older than the audit
        again = next((n for n, ancestor in enumerate(nodes) if ancestor.site is event.site), None)
        if again is not None and (multiplies or any(ancestor.op == "mul" for ancestor in nodes[:again])):
            return True
        if _SCATTERED in node.debts or (event.name == "neg" and _wraps(node)):  # a checksum, and its complement
            _settle(event, audit)
            return True
        if _is_unpacked(node):
            return True
        for debt in node.debts if event.name.endswith("_") else ():
            if isinstance(debt, Wrapped) and debt.multiplies:
                debt.settled = True
                return True
    return False


def _wraps(node: Node) -> bool:
    """Whether values have wrapped, or are a sum in few bits, which is one that was asked for."""
    return (node.op in ("sum", "cumsum") and node.dtype in NARROW) or any(
        isinstance(debt, Wrapped) for debt in node.debts
    )


def _settle(event: Op, audit: Recorder) -> None:
    """What went in has wrapped as it was meant to, and so does what comes of it."""
    _forgive(*filter(None, map(audit.lineage.get, event.inputs)))
    node = audit.lineage.get(event.out)
    if node is not None:
        node.owes((_SCATTERED,))


def _scatters(value: Any, out: Tensor) -> bool:
    """Whether to multiply by it is to scatter: the factors of hashes are large, and odd so that they lose nothing."""
    bits = 8 * out.dtype.itemsize
    least = max(64, 2 ** (bits // 2 - 2)) if bits < 64 else 2**56  # a number of nodes may be large, and odd
    if isinstance(value, Tensor):
        constant = value.numel() < out.numel() or not value.ndim
        return constant and bool(((value % 2 == 1) & (value.long().abs() > least)).all())
    return isinstance(value, int) and value % 2 == 1 and abs(value) > least


@on("after", RULE, ops=_BITS)
def bits_are_taken(event: Op, audit: Recorder) -> None:
    for tensor in event.inputs if audit.state(Wraps).rows else ():
        node = audit.lineage.get(tensor) if tensor.dtype is not torch.bool else None  # `(a < b) & mask` takes none
        if node is not None:
            _forgive(node)


@on("after", RULE, ops=_REMAINDERS)
def remainder_is_taken(event: Op, audit: Recorder) -> None:
    """Of a hash in 64 bits; of narrow integers what wraps before is a product that is reduced too late."""
    divisor = event.args[1] if event.args[1:] else None
    power = isinstance(divisor, int) and divisor > 0 and not divisor & (divisor - 1)  # which wrapping keeps
    if power or (isinstance(event.out, Tensor) and event.out.dtype is torch.int64):
        bits_are_taken(event, audit)
    elif isinstance(divisor, int) and audit.state(Wraps).rows:
        node = audit.lineage.get(event.args[0])
        for debt in () if node is None else node.debts:
            if isinstance(debt, Wrapped) and not debt.settled and 0 < debt.below <= divisor:
                debt.reduced = True


@on("after", RULE, ops=_QUOTIENTS)
def quotient_is_taken(event: Op, audit: Recorder) -> None:
    """`(row * n + column) // n`: a key of two numbers, which is no hash."""
    if audit.state(Wraps).rows and isinstance(event.args[1], int):
        node = audit.lineage.get(event.inputs[0])
        for debt in () if node is None else node.debts:
            if isinstance(debt, Wrapped) and debt.factor == event.args[1]:
                debt.reduced = True


@on("after", RULE, ops=_COMPARES)
def overflow_is_asked_for(event: Op, audit: Recorder) -> None:
    """`s = a + b; torch.where(s < a, 255, s)`: what is less than an addend has wrapped."""
    if audit.state(Wraps).rows and len(event.inputs) == 2:
        one, other = map(audit.lineage.get, event.inputs)
        if one is not None and other is not None:
            _forgive(*(node for node, its in ((one, other), (other, one)) if its in node.parents))


@on("after", RULE, ops=["eq", "ne"])
def end_is_asked_for(event: Op, audit: Recorder) -> None:
    """`(labels - 1) != 255`: what 0 becomes is a mark, which the program knows of."""
    dtype = event.inputs[0].dtype
    if audit.state(Wraps).rows and event.inputs[0].dtype in NARROW and type(event.args[1]) is int:
        node = audit.lineage.get(event.inputs[0])
        if node is not None and dtype is not torch.bool and event.args[1] == torch.iinfo(dtype).max:
            _forgive(node)


@on("after", RULE, ops=["where"])
def other_way_is_chosen(event: Op, audit: Recorder) -> None:
    """`torch.where(a > b, a - b, b - a)`: of two differences the one that has not wrapped."""
    if audit.state(Wraps).rows and len(event.inputs) == 3:
        asked, *ways = map(audit.lineage.get, event.inputs)
        if asked is not None and asked.op in _COMPARES:
            _forgive(*(way for way in ways if way is not None and set(way.parents) == set(asked.parents)))


def _forgive(*nodes: Node) -> None:
    """What has wrapped in these was meant to."""
    for debt in [debt for node in nodes for debt in node.debts]:
        debt.settled |= isinstance(debt, Wrapped)


@on("end", RULE)
def judge(audit: Recorder) -> None:
    for row in audit.state(Wraps).rows.values():
        meant = not row.reduced and (row.settled or row.hashes)
        finding = None if meant else row.suspect.find(audit)
        if finding is not None:
            finding.count += row.count - 1


def wrapping(
    event: Op, detail: str, advice: str, audit: Recorder, source: Tensor | None = None, **facts: str
) -> Suspect:
    source = event.inputs[0] if source is None else source
    suspect = audit.suspect(RULE, event, source, detail=detail, advice=advice, **facts)
    picture = event.out.dtype is torch.uint8 and event.out.numel() > 1  # which is clamped, at that line
    return at_target(suspect, event.out, audit) if advice.startswith(TARGET) and not picture else suspect


# ---------------------------------------------------------------- casts


@on("cast", RULE)
def out_of_range(event: Op, audit: Recorder) -> None:
    """A picture that is saved without a clamp, labels of which one is -100, sound at full scale."""
    source, dtype = event.inputs[0], event.out.dtype
    if event.kind != "device":
        node = audit.lineage.get(source)
        clamped = node is not None and node.op.startswith("clamp")
        if source.dtype in INTEGERS and dtype in NARROW and dtype.itemsize < source.dtype.itemsize and not clamped:
            bits_are_taken(event, audit)  # the lower ones
        checks = dtype is torch.uint8 and _is_checksum(source, audit)
        if checks and (made := audit.lineage.get(event.out)) is not None:
            made.owes((_SCATTERED,))
        whole = not source.is_floating_point() and dtype is not torch.uint8
        _convert(event, source, checks or (whole and not _is_count(node)), audit)


@on("write", RULE)
def written(event: Op, audit: Recorder) -> None:
    """The same, where nobody has asked for a cast."""
    source = source_of(event, audit)
    if source is not None and event.name == "copy_":
        _convert(event, source, False, audit)


def _convert(event: Op, source: Tensor, meant: bool, audit: Recorder) -> None:
    dtype = event.out.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool or source.dtype in (torch.bool, dtype):
        return
    if source.is_complex() or not event.readable:
        return
    alike = not source.is_floating_point() and source.dtype.itemsize == dtype.itemsize
    if alike and event.name != "copy_":  # bits that are packed; nobody asks for that in a write
        return
    if not audit.due("DG109", event.site) or _is_unpacked(audit.lineage.get(source)):
        return
    ends = torch.iinfo(dtype)
    looked = some(source)
    whole = looked.double().trunc() if source.is_floating_point() else looked.long()
    outside = int((((whole < ends.min) | (whole > ends.max)) & whole.isfinite()).sum())
    if outside:
        detail = f"{of(outside, looked, source)} values are outside of {_range(dtype)} and wrap around"
        advice = _instead(event, source, whole, outside, audit)
        suspect = wrapping(event, detail, advice, audit, source, what=expression(event))
        suspect.find(audit, Severity.INFO if meant else None)


def _instead(event: Op, source: Tensor, whole: Tensor, outside: int, audit: Recorder) -> str:
    """What to write for a cast: ids, positions and code points stay what they are, pixels and samples are clamped."""
    dtype, node = event.out.dtype, audit.lineage.get(source)
    if dtype is torch.int64:
        return "clamp the values before the cast"
    known = () if node is None else (node, *node.ancestors(_NEAR))
    if not source.is_floating_point() and not any(
        one.dtype is torch.uint8 or one.dtype.is_floating_point for one in known
    ):
        if event.name == "copy_":
            return f"{TARGET} `dtype=torch.{name_of(source.dtype)}`, which has them all"
        return f"cast to a dtype that has them all, as ids and positions need: `.to(torch.{name_of(source.dtype)})`"
    ends = torch.iinfo(dtype)
    other = {torch.uint8: torch.int8, torch.int8: torch.uint8}.get(dtype)
    clamp = f"clamp to what the dtype holds: `.clamp({ends.min}, {ends.max})` before the cast"
    if other is None or event.name == "copy_" or outside <= _SIGNED * whole.numel():
        return clamp
    its = torch.iinfo(other)
    fits = its.min <= whole.min() and whole.max() <= its.max
    return f"cast to the dtype that has them all: `.to(torch.{name_of(other)})`" if fits else clamp


def _is_count(node: Node | None) -> bool:
    """Whether numbers say how many there are; other integers may be a hash, which wraps on purpose."""
    if node is None:
        return False
    return node.op in ("count_nonzero", "bincount") or (
        node.op == "sum" and any(one.dtype is torch.bool for one in node.parents)
    )


def _is_checksum(source: Tensor, audit: Recorder) -> bool:
    """Whether each number sums up bytes; a picture has more axes, and a sum of a mask is a count."""
    node = audit.lineage.get(source)
    if node is None or node.op != "sum" or source.ndim > 1 or all(one.dtype is not torch.uint8 for one in node.parents):
        return False
    return all(one.dtype is not torch.bool for one in node.ancestors(_NEAR))


def _is_unpacked(node: Node | None) -> bool:
    """Whether bits were taken apart: what they are cast to is meant."""
    if node is None:
        return False
    if node.op in ("stack", "cat"):
        return any(map(_is_unpacked, node.parents))
    other_dtype = node.op == "view" and bool(node.parents) and node.parents[0].dtype is not node.dtype
    return other_dtype or node.op.startswith(("bitwise_", "__rshift__", "__lshift__", "__and__"))
