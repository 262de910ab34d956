"""Operands that promote each other, for DG101 (to float64) and DG102 (to float32).

Whether a promotion harms is known only later, so they stay open until the audit ends. float64 harms, unless it is cast
back, was asked for on the spot, is what the model is, or ends in an accumulator that was made so. float32 for half
operands harms where the result leaves a module, or meets half tensors again, or is kept; not where it is cast back, or
ends as a loss, as integers, or as numbers of Python.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from ..._engine.watch.lineage import Debt, off_by
from ..._engine.watch.models import dtype_of
from .._kit import Node, Op, Recorder, Rule, Severity, Site, human, name_of, on, readable, size_of

_SCALER = GradScaler.scale.__code__.co_filename  # what it does with a half loss is told by DG306
_ASKED = re.compile(r"\.double\(|\b(float64|complex128)\b|dtype=[a-z]\w*[,)]")  # code that says what it wants
MADE = "cast one side where it is made: "


@dataclass(eq=False)
class Promotions:
    """Those of one line, module and pair of dtypes."""

    site: Site
    module: str | None
    op: str
    narrow: torch.dtype
    wide: torch.dtype
    meant: bool  # by autocast, or by a cast on the spot
    nodes: tuple[Node, ...]  # of the wide operands
    narrow_node: Node | None = None
    both_half: bool = False
    own: bool = False  # the wide dtype is the model's: the narrow operand is the odd one
    asked: bool = False  # float64 is written in the code
    named: bool = False  # it is, no model is near, and nothing has refused what comes of it
    count: int = 0
    closed: int = 0
    cast_back: int = 0
    back_to: torch.dtype | None = None  # what it was cast to
    gathered: int = 0  # in accumulators
    reduced: bool = False  # to one number, as a loss is
    harmful: int = 0
    bytes: int = 0
    code: str = ""  # of the wide operand
    off: float = 0.0  # by how much float32 rounds its values, at most, where these are large
    autocast: bool = False
    pair: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float64)  # of both operands, which may be complex
    result: torch.dtype = torch.float64

    @property
    def creeps(self) -> bool:
        """Whether they make float64 of what is not."""
        return self.wide is torch.float64 and not self.own

    @property
    def harms(self) -> bool:
        if (
            self.meant or self.own or self.named or (self.cast_back and self.wide is not torch.float64)
        ):  # somebody knows of it
            return False
        alone = self.wide is torch.float64 or self.module is None  # a module's own business may stay in it
        return self.closed < self.count if alone else self.harmful > 0


@dataclass(eq=False)
class Promoted(Debt):
    """The cause of one result's dtype."""

    row: Promotions
    audit: Recorder
    learns: bool = False  # a derivative is taken through it
    open: bool = True
    harmful: bool = False
    settled: bool = False  # for good; what ended in a softmax may still be refused later

    def close(self, settled: bool = True) -> None:
        self.settled |= settled
        if self.open:
            self.open = False
            self.audit.promotions -= 1
            self.row.closed += 1
            self.row.harmful -= self.harmful

    def harm(self) -> None:
        if self.open and not self.harmful:
            self.harmful = True
            self.row.harmful += 1

    def refused(self, final: bool) -> None:
        """Somebody does not want the wide dtype; where that ends the program, where it ended counts no more."""
        self.row.named = False
        if not final:
            return
        if not self.open and not self.settled:
            self.open = True
            self.audit.promotions += 1
            self.row.closed -= 1
        self.harm()


@dataclass
class Open:
    rows: dict[tuple[Any, ...], Promotions] = field(default_factory=dict)


@on("mixed", "DG101", "DG102")
def promoted(event: Op, audit: Recorder) -> None:
    """Floats of several dtypes, which wait for the end."""
    if not are_floats(event.kept) or (event.frame is not None and event.frame.f_code.co_filename == _SCALER):
        return
    floats = [tensor for tensor in event.inputs if _real(tensor) is not None]
    some = [tensor for tensor in floats if tensor.ndim] or floats
    dtypes = {dtype for tensor in some if (dtype := _real(tensor)) is not None}
    if len(dtypes) < 2:
        return
    narrow, *_, wide = sorted(dtypes, key=lambda dtype: (dtype.itemsize, name_of(dtype)))
    both = wide.itemsize == narrow.itemsize  # float16 and bfloat16 meet in float32
    wide = event.out.dtype if both else wide
    lines, key = audit.state(Open).rows, (event.site, event.module, narrow, wide)
    row = lines.get(key)
    if row is None:
        nodes = tuple(node for t in floats if _real(t) is wide and (node := audit.lineage.get(t)) is not None)
        for birth in audit.births.values():
            birth.met |= any(ancestor.cause is birth for node in nodes for ancestor in node.ancestors())
        meant = all(tensor.ndim == 0 for tensor in floats) or any(_asked_for(node, event.site) for node in nodes)
        narrow_node = audit.lineage.get(next(tensor for tensor in some if _real(tensor) is narrow))
        meant = meant or _is_of_bools(narrow_node)
        own = asked = named = False
        if wide is torch.float64:
            asked = _asks_for_float64(nodes)
            named = asked and event.module is None and _parameter_of(narrow_node) is None
            own = _parameter_of(narrow_node) is None and _is_models(nodes, event.module, audit)
        else:
            meant = meant or event.autocast or _is_meant(narrow_node) or _is_cast(event.site)
        row = Promotions(
            event.site, event.module, event.name, narrow, wide, meant, nodes, narrow_node, both, own, asked, named
        )
        wider = next(tensor for tensor in some if _real(tensor) is wide or both)
        row.code, row.off = _code(event, wider), off_by(wider) if readable(wider) else 0.0
        row.pair = next(t.dtype for t in some if _real(t) is narrow), wider.dtype
        row.result, row.autocast = event.out.dtype, event.autocast
        lines[key] = row
    row.count += 1
    row.bytes += size_of(event.out)
    for tensor in floats:
        if _real(tensor) is wide:
            for earlier in open_promotions(tensor, audit, wide):
                if earlier.row is row:
                    row.meant = True  # the line meets its own result: an accumulator, which is wide for a reason
                earlier.harm()
    cause = Promoted(row, audit, torch.is_grad_enabled() and any(tensor.requires_grad for tensor in event.inputs))
    audit.promotions += 1
    node = audit.lineage.get(event.out)
    if node is not None:
        node.cause = cause
        node.owes((cause,))
    if event.out.ndim == 0 and wide is torch.float32:
        cause.close()


def are_floats(tensors: Iterable[Tensor]) -> bool:
    """Whether there are floats among them."""
    return any(_real(tensor) is not None for tensor in tensors)


def _real(tensor: Tensor) -> torch.dtype | None:
    """The dtype of a floating tensor, or of the parts of a complex one."""
    return _real_of(tensor.dtype)


def _real_of(dtype: torch.dtype) -> torch.dtype | None:
    return dtype if dtype.is_floating_point else dtype.to_real() if dtype.is_complex else None


def _code(event: Op, tensor: Tensor) -> str:
    """What the program has for an operand, if its own line calls the operation."""
    codes = event.site.operands(event.name.rstrip("_"), len(event.inputs)) if event.direct else []
    return next((code for one, code in zip(event.inputs, codes, strict=True) if one is tensor), "") if codes else ""


def _asked_for(node: Node, site: Site) -> bool:
    """Whether somebody widened it by hand, in the same function."""
    birth = node.birth
    cast = birth.op == "_to_copy" and birth.cause is None and birth.parents
    return bool(cast) and birth.site.file == site.file and birth.site.function == site.function


def _is_cast(site: Site) -> bool:
    """Whether the code casts the result to float32 there, which it is."""
    return any(f"({site.expression}){cast}" in site.source for cast in (".float()", ".to(torch.float32)"))


def _asks_for_float64(nodes: Iterable[Node]) -> bool:
    """Whether the code says that it wants float64, where that is born."""
    born = (one for node in nodes for one in (node.birth, *node.sources()))
    return any(_ASKED.search(one.site.written) for one in born)


def _is_models(nodes: tuple[Node, ...], module: str | None, audit: Recorder) -> bool:
    """Whether float64 is what the model is in, as a whole: the one that runs, or the one that the tensors come from."""
    if dtype_of(module, audit) is torch.float64:
        return True
    parameters = (parameter.op.partition(" ")[2] for node in nodes if (parameter := _parameter_of(node)) is not None)
    return any(dtype_of(path, audit) is torch.float64 for path in parameters)


def _parameter_of(node: Node | None) -> Node | None:
    """The nearest parameter that a tensor was computed from."""
    ancestors = () if node is None else node.ancestors()
    return next((ancestor for ancestor in ancestors if ancestor.op.startswith("parameter ")), None)


def _is_of_bools(node: Node | None) -> bool:
    """Whether it is a mask that was made float to be multiplied by: it says nothing of the dtype that is meant."""
    return node is not None and node.op == "_to_copy" and bool(node.parents) and node.parents[0].dtype is torch.bool


def _is_meant(node: Node | None) -> bool:
    """Whether the narrow operand is autocast's, or a parameter of which an average is kept."""
    if node is None:
        return False
    return node.op.startswith("parameter ") or any(ancestor.cause == "autocast" for ancestor in node.ancestors())


@on("cast", "DG101", "DG102")
def cast_back(event: Op, audit: Recorder) -> None:
    """Somebody narrows what was promoted."""
    source, out = event.inputs[0], event.out
    if event.kind == "explicit" and out.dtype.is_floating_point and out.dtype.itemsize < source.dtype.itemsize:
        for promoted in _promotions(source, audit):
            if promoted.learns and not source.ndim and not source.requires_grad:
                continue  # a copy of a loss for a log, which says nothing of the loss
            promoted.row.cast_back += promoted.open
            promoted.row.back_to = out.dtype
            promoted.close()


def open_promotions(tensor: Tensor, audit: Recorder, wide: torch.dtype) -> list[Promoted]:
    """The promotions that a tensor comes from, and nobody has closed."""
    every = _promotions(tensor, audit) if audit.promotions else []
    return [promoted for promoted in every if promoted.open and promoted.row.wide is wide]


def _promotions(tensor: Tensor, audit: Recorder) -> list[Promoted]:
    node = audit.lineage.get(tensor) if audit.state(Open).rows else None
    return [] if node is None else [debt for debt in node.debts if isinstance(debt, Promoted)]


def rows(audit: Recorder) -> Iterator[Promotions]:
    """What is known of each line when the audit ends; not what all went into accumulators."""
    return (row for row in audit.state(Open).rows.values() if row.gathered < row.count)


@on("end", "DG101", "DG102")
def blame(audit: Recorder) -> None:
    for row in rows(audit):
        if row.harms:
            effect = f"{name_of(row.wide)} met {name_of(row.narrow)} at {row.site}"
            audit.blame(row.nodes, effect, own_dtype=True)


def tell(rule: Rule, row: Promotions, audit: Recorder, at_birth: bool = True, **facts: Any) -> None:
    """Tell of them; `at_birth` is whether the advice is about the line where the dtype was born."""
    nodes = row.nodes if not row.own else () if row.narrow_node is None else (row.narrow_node,)
    facts = {**_facts_of(row), **facts}
    if row.cast_back and not row.harms:
        narrow, back = like(row.pair[1], row.narrow), row.back_to
        to = f"back to {name_of(narrow)}" if back in (None, narrow) else f"to {name_of(back)}"
        facts["size"] += f"; later cast {to}"
    finding = audit.find(
        rule, row.site, module=row.module, op=row.op, severity=None if row.harms else Severity.INFO,
        facts=facts, from_dtype=like(row.pair[1], row.narrow), to_dtype=row.result, bytes=row.bytes,
        origin=nodes[0].line(at_birth) if nodes else (),
    )  # fmt: skip
    if finding is not None:
        finding.count += row.count - 1


def _facts_of(row: Promotions) -> dict[str, Any]:
    """What both rules say of operands that promote each other."""
    narrow, wide = row.pair
    cast, other = (f"`.to(torch.{name_of(like(*two))})`" for two in ((wide, narrow), (narrow, wide)))
    act = f"{cast} on the {name_of(wide)} operand where it is made, or on the result"
    if row.harms:
        advice = f"{MADE}{act}; where {name_of(wide)} is meant, as in a loss, {other} on the other"
    else:
        advice = f"leave it where {name_of(wide)} is meant, as in a loss or for positions; else {act}"
    return facts_of(row.site, row.op, row.pair, row.result, row.bytes, advice)


def facts_of(
    site: Site, op: str, pair: tuple[torch.dtype, torch.dtype], result: torch.dtype, size: int, advice: str
) -> dict[str, Any]:  # fmt: skip
    """The facts of a promotion, the narrower dtype first."""
    mixed = " and ".join(map(name_of, pair))
    return {
        "what": site.expression or op, "pair": mixed, "wide": name_of(result), "size": f", {human(size)}",
        "advice": advice,
    }  # fmt: skip


def like(dtype: torch.dtype, other: torch.dtype) -> torch.dtype:
    """A dtype of another's precision that holds what the first does: complex where that is complex."""
    real = _real_of(other)
    return other if real is None else real.to_complex() if dtype.is_complex else real
