"""What does not move that should: tensors that are written again and again, and changes too small to be seen.

Each write is right to the last bit, so only time shows it. A sample of a tensor's values is kept from its second write
on; how far it is from there, beside how far its shadow is, says whether the values follow.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..operands import all_values
from ..ops import ACCUMULATES, SUMS, Operator
from ..sample import some
from .incoming import Incoming, loops
from .measure import Error, norm
from .memory import ShadowStorage
from .rows import Row

_SAMPLE = 1024  # values of one tensor
_POINTS = 256  # of a course
_LONG = 16  # writes to one tensor, from which on it is looked at twice as often as a line
_SOMETIMES = 1 / 2, 3 / 4  # of the next power of two
_ONCE = 3  # writes, from which on a tensor is followed: it is made, written to, and written to again
# Measured on 91 programs with a fault and 140 without: half and twice as much of each give the same, but for
# `_FOLLOWS`, which misses three averages with 0.25.
_FOLLOWS = 0.5  # of the way of the shadow
_ULPS = 4  # roundings, which an error is larger than that has built up
_FEW = 64  # values
_ABSORBED, _GONE = 0.25, 0.25  # of the values of a parameter; and of one value
_CHANGES = frozenset("add_ sub_".split())
_SCALES = frozenset("mul_ div_ _foreach_mul_ _foreach_div_".split())


@dataclass(slots=True)
class Path:
    """The way of a tensor's values.

    Attributes:
        first: where they began.
        shadow: where their shadow began.
        last: where they were at the last look.
        since: the write since which they stand still; 0 if they do not.
        stood: where their shadow was then.
        courses: how far they and their shadow have moved at the writes that were looked at, by the line that wrote:
            one that writes once, as `v.sqrt_().add_(eps)`, builds up nothing
    """

    first: Tensor
    shadow: Tensor
    last: Tensor
    since: int = 0
    stood: Tensor | None = None
    courses: dict[Row, list[tuple[int, float, float]]] = field(default_factory=dict)

    def note(self, row: Row, write: int, moved: float, should: float) -> None:
        course = self.courses.setdefault(row, [])
        if len(course) < _POINTS and math.isfinite(moved) and math.isfinite(should):
            course.append((write, moved, should))


def begin(tensor: Tensor, held: ShadowStorage) -> bool:
    """A tensor is about to be written to, not for the first time; whether to look at it, whatever its line needs."""
    if held.path is None and held.writes >= _ONCE and tensor.numel():
        values = _sample(tensor, held)
        held.path = Path(values, held.buffer[:: _step(held.buffer.numel())].detach().clone(), values)
    return held.writes >= _LONG and held.writes / (1 << held.writes.bit_length()) in _SOMETIMES


def stands(tensor: Tensor, held: ShadowStorage, row: Row) -> int:
    """Since which write of a line the values stand still, or lag behind, while the shadow moves; 0 if they do not."""
    path: Path | None = held.path
    if path is None:
        return 0
    now, step = _sample(tensor, held), _step(held.buffer.numel())
    shadow = held.buffer[::step]
    if not torch.equal(now, path.last):
        path.since = 0
    elif not path.since:
        path.since, path.stood = held.writes // 2, shadow.clone()
    path.last = now
    wide, first = now.to(shadow.dtype), path.first.to(shadow.dtype)
    way = shadow - path.shadow
    moved, should, lost, size = map(norm, (wide - first, way, shadow - wide, shadow))
    again = row in path.courses
    path.note(row, held.writes, moved, should)
    built_up = _ULPS if moved else 1  # a compensated sum is off by less than one
    if not again or not math.isfinite(should) or lost <= built_up * row.half_ulp * size:
        return 0
    left = path.since and path.stood is not None and norm(shadow - path.stood) >= _FOLLOWS * lost
    along = float(torch.vdot(wide - first, way).abs())  # roundings go elsewhere
    if along >= _FOLLOWS * should**2 and not left:
        return 0
    return max(1, path.since)


def follows(tensor: Tensor, held: ShadowStorage, row: Row) -> None:
    """Values that are as their shadow is have moved as far."""
    path: Path | None = held.path
    if path is not None:
        moved = norm(_sample(tensor, held).to(path.shadow.dtype) - path.first.to(path.shadow.dtype))
        path.note(row, held.writes, moved, moved)


def unmoved(op: Operator, args: Any, old: Tensor | None, tensor: Tensor) -> tuple[int, int]:
    """How many values a change in place has left as they were, of how many that it should have changed."""
    if op.name not in _CHANGES or old is None or tensor.ndim < 2 or tensor.dtype.itemsize > 2:
        return 0, 0
    if tensor.requires_grad or (tensor.is_leaf and tensor.grad is not None):  # it is trained, which takes many steps
        return 0, 0
    change = args[1] if len(args) > 1 else None
    if not isinstance(change, Tensor) or change.shape != tensor.shape or tensor.numel() < _FEW:
        return 0, 0
    meant = some(change) != 0
    return int((meant & (some(tensor) == old)).sum()), int(meant.sum())


def merge(op: Operator, args: Any, row: Row, tensor: Tensor, held: ShadowStorage | None) -> None:
    """Weights to which a change is added, as that of an adapter: they are some only if a module gets them."""
    pair = args[:2]
    if op.name not in ("add", "sub") or held is None or row.module is not None or tensor.requires_grad:
        return
    if tensor.ndim < 2 or tensor.dtype.itemsize > 2 or tensor.numel() < _FEW:
        return
    if any(not isinstance(one, Tensor) or one.shape != tensor.shape or one.dtype is not tensor.dtype for one in pair):
        return
    old, change = pair if op.name == "sub" or norm(pair[0]) >= norm(pair[1]) else reversed(pair)
    meant = change != 0
    held.merged = row, int((meant & (tensor == old)).sum()), int(meant.sum())


def arrive(tensor: Tensor, held: ShadowStorage) -> None:
    """A tensor that is trained is one that the program writes itself; what was merged has become a parameter."""
    base = tensor if tensor._base is None else tensor._base
    if held.path is not None and tensor.requires_grad:
        held.trained = held.trained or base.is_leaf
    if held.merged is not None and isinstance(base, Parameter):
        row, stay, of = held.merged
        row.unmoved, held.merged = (row.unmoved[0] + stay, row.unmoved[1] + of), None


def scaled(op: Operator, args: Any, half_ulp: float) -> float | None:
    """A factor in place that is 1 in the dtype of the values, so that none of them moves: `mul_(1 - lr * decay)`."""
    factor = args[1] if op.name in _SCALES else 1
    return factor if isinstance(factor, float) and 0 < abs(factor - 1) < half_ulp / 2 else None


def absorbed(op: Operator, args: Any, tensor: Tensor, shadow: Tensor) -> tuple[int, int] | None:
    """How many values of a parameter are lost beside a number that is added to it, of how many: `1 + weight`."""
    if op.name not in ("add", "sub", "rsub") or len(args) < 2 or tensor.dtype.itemsize > 2:
        return None
    parameter = next((one for one in args[:2] if isinstance(one, Parameter)), None)
    numbers = [one for one in args[:2] if isinstance(one, (int, float)) and one]
    if parameter is None or not numbers or parameter.shape != tensor.shape:
        return None
    some = parameter != 0
    gone = (tensor.to(shadow.dtype) - shadow).abs() > _GONE * parameter.to(shadow.dtype).abs()
    lost, of = int((gone & some).sum()), int(some.sum())
    return (lost, of) if of and lost > _ABSORBED * of else None


def _step(count: int) -> int:
    return max(1, count // _SAMPLE)


def _sample(tensor: Tensor, held: ShadowStorage) -> Tensor:
    """Some of the values of its storage, the same ones each time."""
    return all_values(tensor.untyped_storage(), held.dtype)[:: _step(held.buffer.numel())].clone()


def counts(op: Operator, args: Any, row: Row, incoming: list[Incoming], shadow: Tensor) -> bool:
    """Whether each addend of a running total is meant: whole numbers, or one number that is added again, as to time."""
    number = next((one for one in args[:2] if isinstance(one, (int, float))), None)
    again, row.addend = number is not None and number == row.addend, number
    steady = again and op.name.startswith(("add", "sub")) and any(one.row is row for one in incoming)
    return op.name in ACCUMULATES and (steady or bool((shadow == shadow.round()).all()))


def outgrown(op: Operator, args: Any, row: Row, incoming: list[Incoming], shadow: Tensor, error: Error) -> bool:
    """Whether a count goes on beyond the numbers that its dtype has: one in float32 stands still at 2**24."""
    again = error.size * row.half_ulp > 0.5 and any(loops(one.row, row) for one in incoming)
    return again and counts(op, args, row, incoming, shadow)


def kept_beside(op: Operator, incoming: Iterable[Incoming]) -> Any:
    """What an input keeps beside it, where the result of an operation keeps that, too."""
    carries = op.exact or op.name in SUMS
    return next((one.held.beside for one in incoming if one.held.beside is not None), None) if carries else None


def is_hidden(op: Operator, incoming: Iterable[Incoming]) -> bool:
    """Whether a result is of those that no program gets: the probabilities of `scaled_dot_product_attention`."""
    return op.name == "_to_copy" and any(one.row and one.row.name == "_safe_softmax" for one in incoming)
