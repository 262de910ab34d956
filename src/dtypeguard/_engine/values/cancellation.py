"""Cancellation: the size of what was subtracted, as a multiple of the size of the difference.

A difference of two results that are nearly equal has a large relative error, and is no fault: it is judged by the size
of what was subtracted, until something divides by it, takes its root or its logarithm, or decides on it.
A difference of data is judged as it is: where a cast has rounded times or coordinates until they are equal, nothing
that follows shows it. So is a variance that is computed as a mean of squares less the square of a mean, and a
difference in which an offset cancels beside which what is left had lost its digits.
"""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF, HALF_ULP
from ..ops import SUMS, Cancels, Operator
from .incoming import Incoming, carried, loops
from .measure import Error, norm
from .memory import DOUBLE, SINGLE, ShadowStorage
from .rows import LARGE, TOTAL, Row

_SPECTRAL = frozenset("_linalg_eigh linalg_eig _linalg_eigvals linalg_eigvals _linalg_svd".split())
_TURNS = frozenset(["sin", "cos"])
_MEANS, _MOVES = frozenset(["mean", "sum"]), frozenset(["_to_copy", "clone"])
_WIDEST = 1e15  # a cancellation; what is larger says no more
_EQUAL = 512  # roundings of the wider dtype: data that differ by less were equal before they were rounded
_ALIKE = 16  # times: what was rounded to one dtype; of the same data in two dtypes the difference is their rounding
_SLIGHT = 2.0**-5  # an error of data: what is more wrong was wrong before they were added up
_ZERO = 16  # roundings of the wider dtype, of a difference from a number
_NIL = 2.0**-10  # of a rounding of the narrower one: `1 - ssim(x, x)`
_OFFSET = 256  # times the smaller of two numbers that are added: beside that it loses digits
_STEP = 0.1  # what the difference of a slope is divided by, at most
_SPOILT, _UNIT = 0.25, (0.3, 3.0)  # error of a difference; and its size, divided by what it is like
_STANDS, _UNITS = 0.5, 64  # share of values that an addend has not changed; and units that were lost, which are many
_NEAR = 4.0  # times the smaller one: a difference in which it is what is left


@dataclass(frozen=True, slots=True)
class Beside:
    """Numbers that have lost digits beside larger ones, to which they were added.

    Attributes:
        row: of the sum.
        visit: which of its visits that was: of two rounds of a loop the difference is what was added.
        level: what the smaller numbers were like.
        larger: the storage of the larger ones, and how often it had been written to; None if they are this sum as the
            last round of a loop left it: less them it says whether it moves still, and no more.
    """

    row: Row
    visit: int
    level: float
    larger: tuple["weakref.ref[Any]", int | None] | None = field(compare=False)

    def is_larger(self, operand: Any) -> bool:
        """Whether these are the larger numbers, as they were."""
        return self.larger is not None and isinstance(operand, Tensor) and _now(operand) == self.larger


def beside(op: Operator, args: Any, kwargs: Any, row: Row, incoming: list[Incoming]) -> Beside | None:
    """What a sum of two tensors makes of the smaller one; None if that keeps its digits."""
    if op.cancels is not Cancels.DIFFERENCE or not all(isinstance(one, Tensor) for one in args[:2]):
        return None
    one, other = _levels(args[:2], incoming)
    other *= abs(kwargs.get("alpha", 1))
    (small, _), (large, place) = sorted([(one, 0), (other, 1)])
    if not 0 < _OFFSET * small < large < math.inf:
        return None
    last = next((one.row for one in incoming if one.tensor is args[place] and one.row is not None), None)
    again = last is not None and (loops(last, row) or last.comes_from(row))
    return Beside(row, row.visits, small, None if again else _now(args[place]))


def _is_left(operands: Iterable[Any], incoming: list[Incoming], error: Error) -> Row | None:
    """The sum beside whose larger number all that is left in a difference had lost its digits.

    Of two such sums, or of one and the larger number: `(x + a) - x`.
    """
    known = {id(one.tensor): one.held.beside for one in incoming}
    pair: list[tuple[Any, Beside | None]] = [(operand, known.get(id(operand))) for operand in operands]
    for (operand, other), (_, one) in (pair, pair[::-1]):
        if one is not None and (one == other or one.is_larger(operand)) and error.level <= _NEAR * one.level:
            return one.row
    return None


def _stood(incoming: list[Incoming]) -> Row | None:
    """A total of which one is taken that stands still and has lost many units by now: that is the difference.

    Less what it was in the last round it says whether it moves still, and no more.
    """
    for one in incoming:
        total, units = one.row, one.error / torch.finfo(one.tensor.dtype).eps
        if total is None or total.stalled <= _STANDS or units <= _UNITS:
            continue
        if not any(loops(other.row, total) for other in incoming if other is not one):
            return total
    return None


def _larger(incoming: list[Incoming]) -> float:
    """What the sums were like of which something that comes in is left; 0 where nothing is."""
    rows = (one.row.taken for one in incoming if one.row is not None)
    return max((row.largest for row in rows if row is not None), default=0.0)


def _now(tensor: Tensor) -> tuple["weakref.ref[Any]", int | None]:
    """The storage of values, and how often it has been written to."""
    return weakref.ref(tensor.untyped_storage()), None if tensor.is_inference() else tensor._version


def _is_variance(operands: Iterable[Any], incoming: list[Incoming]) -> bool:
    """Whether it is a mean of squares less the square of a mean."""
    known = {id(one.tensor): one for one in incoming if one.held.squared and one.row is not None}
    rows = [None if (one := known.get(id(operand))) is None else _computed(one.row) for operand in operands]
    if len(rows) < 2 or rows[0] is None or rows[1] is None:
        return False
    mean = _computed(rows[1].parent)
    return rows[0].name in _MEANS and rows[1].name not in _MEANS and mean is not None and mean.name in _MEANS


def _computed(row: Row | None) -> Row | None:
    """The row that computed values, behind those that only moved or cast them."""
    return None if row is None else next((one for one in row.chain() if one.name not in _MOVES), None)


def as_before(op: Operator, args: Any, row: Row, incoming: list[Incoming]) -> tuple[float, float]:
    """The same of results that are not measured: as much cancels, and is left, as at the visits that were.

    Of a difference of two tensors that is what is left of each: one that compensates does not cancel each time.
    """
    cancellations = carried(op, row, incoming)
    cancellation = max(cancellations.values(), default=1.0)
    plain = row.dtype is torch.float64 or not all(isinstance(one, Tensor) for one in args[:2])
    if op.cancels is Cancels.SUM or (op.cancels is Cancels.DIFFERENCE and plain):
        if 1 < row.cancellation < math.inf:
            cancellation = max(cancellation, row.cancellation)
            return cancellation, row.terms / cancellation
    elif op.cancels is Cancels.DIFFERENCE and row.left is not None:
        parts = (cancellations.get(id(one), 1.0) * part for one, part in zip(args, row.left, strict=False))
        return max(1.0, *parts), 0.0
    floor = max((one.held.floor for one in incoming), default=0.0)
    return cancellation, floor if op.cancels is Cancels.CARRIED else 0.0


def cancellation_of(
    op: Operator, args: Any, kwargs: Any, into: Row, incoming: list[Incoming], error: Error
) -> tuple[float, float]:
    """How much larger than the result is what it was computed from; and what size of the result that counts as zero."""
    cancellations = carried(op, into, incoming)
    cancellation = max(cancellations.values(), default=1.0)
    floor = max((one.held.floor for one in incoming), default=0.0)
    whole = 0.0  # the size of what the result was computed from
    if op.name in _SPECTRAL:  # eigenvalues are as exact as the largest of them
        return cancellation, norm(args[0])
    match op.cancels:
        case Cancels.DIFFERENCE:
            # The program's values may be all gone, or be a total that stands still and so is too large.
            sizes = _levels(args[:2], incoming)
            if error.level and len(sizes) == 2:
                parts = [
                    min(1.0, sizes[0] / error.level),
                    min(1.0, sizes[1] * abs(kwargs.get("alpha", 1)) / error.level),
                ]
                into.left = parts if into.left is None else [max(pair) for pair in zip(parts, into.left, strict=True)]
            levels = [size * cancellations.get(id(one), 1.0) for size, one in zip(sizes, args, strict=False)]
            whole = max(levels[0], levels[1] * abs(kwargs.get("alpha", 1))) * math.sqrt(error.count)
            numbers = not all(isinstance(one, Tensor) for one in args[:2])
            single = torch.finfo(torch.float32).eps * whole
            # `p.sum() - 1` of what was rounded to half shows that rounding, if float32 has no difference there.
            numbers = numbers and error.size > (1 if error.distance > _ZERO * single else _NIL) * single
            eps = max((_eps(one.held) for one in incoming), default=0.0)
            rounding, larger = eps * whole, _larger(incoming) * math.sqrt(error.count)
            if error.size < _ZERO * eps * larger:  # `((x + a) - x) - a`: what rounding took from a, as it is meant
                whole, cancellation = larger, 1.0
            elif error.size > _EQUAL * rounding and are_data(args[:2], incoming):
                # What rounding took from them is what the difference was to show, but where a line's results are
                # compared with those of another call of it: they are the same, and their roundings say so.
                same = _are_calls(incoming) and error.size + error.distance < torch.finfo(into.dtype).eps * whole
                whole = whole if same else 0.0
            elif error.distance and (row := _is_left(args[:2], incoming, error) or _stood(incoming)) is not None:
                whole, into.taken = 0.0, row
            elif numbers and error.size > _ZERO * rounding:
                whole = 0.0  # `1 - alpha` is what it is; `x * x - 2` at the root of 2 is zero, but for rounding
            elif error.size > min(_ZERO * rounding, single) and _is_variance(args[:2], incoming):
                whole = 0.0  # which is what it is, too, if the wider dtype has it
            elif whole:  # of nothing left of nothing, as much has cancelled as before
                cancellation = 1.0
        case Cancels.LOSS if op.name.endswith("_backward"):
            values, target = args[1:3]
            if isinstance(values, Tensor) and isinstance(target, Tensor):
                cancellation *= _ratio(_level(values), _level(values - target)) ** (2 if op.name == "mse_loss" else 1)
        case Cancels.LOSS if isinstance(args[0], Tensor):
            size, together = _level(args[0]), error.count and args[0].numel() / error.count
            whole = (size**2 if op.name in ("mse_loss", "var") else size) * math.sqrt(error.count)
            if op.name in ("dist", "cdist", "_cdist_forward"):
                whole *= math.sqrt(together if op.name == "dist" else args[0].shape[-1])
            elif args[2:3] == (2,):  # of torch's codes of reductions: the sum
                whole *= together
            if op.name in ("var", "std") and are_data(args[:1], incoming):
                count, rounding = math.sqrt(error.count), max((_eps(one.held) for one in incoming), default=0.0)
                deviation = math.sqrt(error.size / count) if op.name == "var" else error.size / count
                whole *= deviation <= _EQUAL * rounding * size
        case Cancels.SUM if not op.writes:
            one = next((one for one in incoming if one.tensor is args[0]), None)
            values = args[0] if one is None else one.held.like(one.tensor)
            total = op.func(values.abs(), *args[1:])
            whole = norm(total if total.is_floating_point() or total.is_complex() else total.double())
            together = math.sqrt(values.numel() / max(1, error.count))  # of as many that count as zero
            floor = floor * together if op.name == "sum" else floor / max(1.0, together)
            differs = one is not None and one.row is not None and one.row.name == "sub" and one.error < _SLIGHT
            if one is not None and differs and are_data(args[:1], incoming) and into.dtype not in HALF:
                whole *= error.size <= _EQUAL * _eps(one.held) * whole  # the area of a polygon
        case Cancels.PRODUCT:
            cancellation = math.prod(cancellations.values())
            whole = _terms(op, args, kwargs, into, error)
        case Cancels.NUMERATOR if is_shown(op, args, incoming, error):
            return 1.0, 0.0
        case Cancels.NUMERATOR:
            cancellation, relative = cancellations.get(id(args[0]), 1.0), error.relative(floor, of_a_row=True)
            below = max((one.error for one in incoming if one.tensor is not args[0]), default=0.0)
            cancellation = min(cancellation, relative / below if below else cancellation)  # that is no difference
        case Cancels.SQUARE:
            given = norm(args[0]) if floor and isinstance(args[0], Tensor) else math.inf
            nothing = floor <= given / math.sqrt(_WIDEST)  # else it is the size of a line's other results
            cancellation, floor = cancellation**2, floor**2 * (_WIDEST if nothing else 1 / math.sqrt(error.count or 1))
        case Cancels.ROOT if are_squares(op, args, incoming):
            cancellation = cancellation if cancellation >= _WIDEST else math.sqrt(cancellation)
            floor = math.sqrt(floor / _WIDEST)
        case Cancels.LOST | Cancels.ROOT:  # of probabilities that sum to 1 `logsumexp` is zero, but for rounding
            turns = op.name in _TURNS and error.level < TOTAL and _level(args[0]) > 1  # so is the sine of pi
            return 1.0, math.sqrt(error.count) if turns or op.name == "logsumexp" else 0.0
    if 0 < whole < math.inf and not error.lost:  # what is left where values are infinite says nothing of the rest
        floor = max(floor, whole / _WIDEST) if op.cancels is Cancels.SUM else whole / _WIDEST
        cancellation *= max(1.0, _ratio(whole, max(error.size, floor)))
    return min(max(cancellation, 1.0), _WIDEST), floor


def _terms(op: Operator, args: Any, kwargs: Any, into: Row, error: Error) -> float:
    """The size of terms that cancel until nothing is left, as those of an edge filter in a flat image; or 0."""
    if into.dtype in HALF or op.writes or error.distance <= LARGE * error.size:
        return 0.0
    terms = norm(op.func(*(one.abs() if isinstance(one, Tensor) else one for one in args), **kwargs))
    return terms if error.size <= _ZERO * torch.finfo(into.dtype).eps * terms else 0.0


def is_shown(op: Operator, args: Any, incoming: list[Incoming], error: Error) -> bool:
    """Whether a quotient shows a difference by itself: nothing of the size of what was subtracted comes after it.

    It is divided by a small number of the program's, as that of a slope, or what rounding made of it by its own size.
    """
    if op.cancels is not Cancels.NUMERATOR or not isinstance(args[1], Tensor):
        return op.cancels is Cancels.NUMERATOR and 0 < abs(args[1]) <= _STEP
    below = max((one.error for one in incoming if one.tensor is not args[0]), default=0.0)
    spoilt = _UNIT[0] < error.level < _UNIT[1] and error.relative(of_a_row=True) > max(_SPOILT, 2 * below)
    return spoilt and any(one.tensor is args[0] and one.row is not None and one.row.name == "sub" for one in incoming)


def are_data(operands: Iterable[Any], incoming: list[Incoming]) -> bool:
    """Whether nothing was computed yet: operands are what data were rounded to, or were given as they are."""
    known = {id(one.tensor): one for one in incoming}
    tensors = [one for one in operands if isinstance(one, Tensor)]
    if any(one.dtype is torch.float64 and one.ndim and id(one) not in known for one in tensors):
        return False  # beside what was never rounded, as a reference
    rounded = [known[id(one)] for one in tensors if id(one) in known]
    errors = [one.error for one in rounded if one.error]
    return all(one.held.data for one in rounded) and max(errors, default=0.0) <= _ALIKE * min(errors, default=0.0)


def _are_calls(incoming: list[Incoming]) -> bool:
    """Whether two tensors are results of two calls of one line, and no parts of one."""
    rows = {one.row for one in incoming}
    return len(incoming) == 2 and len(rows) == 1 and incoming[0].held is not incoming[1].held


def prepares(op: Operator, args: Any, incoming: list[Incoming]) -> bool:
    """Whether its result is data still: a part of them, shifted or scaled by others."""
    linear = op.cancels in (Cancels.DIFFERENCE, Cancels.NUMERATOR) or op.name in ("mul", "cumsum")
    by_number = bool(incoming) or not all(isinstance(one, Tensor) for one in args[:2])
    return (op.exact or (linear and by_number)) and all(one.held.data for one in incoming)


def is_rounding(op: Operator, args: Any, incoming: list[Incoming], result: Tensor, held: ShadowStorage) -> bool:
    """Whether a difference of a tensor and what it was rounded to is nothing but that rounding: it is what is meant."""
    pair = args[:2]
    if op.name != "sub" or not incoming or not all(isinstance(one, Tensor) for one in pair):
        return False
    rounded, single = max(incoming, key=lambda one: one.error), torch.finfo(torch.float32).eps
    exact = [one for one in pair if one is not rounded.tensor]
    if len(exact) != 1 or exact[0].shape != rounded.tensor.shape or exact[0].dtype not in DOUBLE | SINGLE:
        return False
    if any(one.error > _ZERO * single for one in incoming if one is not rounded):
        return False
    return norm(held.like(result)) <= _ZERO * single * norm(exact[0]) < norm(result)


def are_squares(op: Operator, args: Any, incoming: list[Incoming]) -> bool:
    """Whether an operation makes squares, or sums or roots of squares."""
    squared = bool(incoming) and incoming[0].held.squared
    twice = op.name in ("mul", "mul_") and args[0] is args[1]
    if twice or op.cancels is Cancels.SQUARE or op.name in ("mse_loss", "var"):
        return True
    if op.name == "mul" and _are_copies(args, incoming):
        return True
    return squared and (op.name in SUMS or op.cancels is Cancels.ROOT)


def _are_copies(args: Any, incoming: list[Incoming]) -> bool:
    """Whether both are one tensor, and one of them or both a cast of it: `mean.float() * mean.float()`."""
    rows = [one.row for one in incoming]
    same = len(rows) == 2 and rows[0] is not None and _computed(rows[0]) is _computed(rows[1])
    return same and args[0].shape == args[1].shape and bool((args[0] == args[1]).all())


def digits_left(op: Operator, args: Any, error: Error) -> float:
    """What is left of the digits of a gradient `p - q` where both are rounded: their roundings, as a share of it."""
    if op.name not in ("_log_softmax_backward_data", "_softmax_backward_data") or not error.size:
        return 0.0
    gradient, output = args[:2]
    terms = gradient if op.name.startswith("_log") else gradient.float() * output
    if error.size < _ZERO * torch.finfo(torch.float64).eps * norm(terms):  # the gradient of a sum that is always 1
        return 0.0
    return HALF_ULP.get(gradient.dtype, 0.0) * norm(terms) / error.size


def _eps(held: ShadowStorage) -> float:
    return torch.finfo(held.buffer.dtype).eps


def _level(value: Any) -> float:
    """The root of the mean square."""
    if not isinstance(value, Tensor):
        return abs(value) if isinstance(value, (int, float)) else 0.0
    if not (value.is_floating_point() or value.is_complex()):
        return 0.0
    return norm(value) / math.sqrt(max(1, value.numel()))


def _levels(operands: Iterable[Any], incoming: list[Incoming]) -> list[float]:
    """Those of operands, of which some have a shadow: its level counts."""
    known = {id(one.tensor): one for one in incoming}
    levels = []
    for operand in operands:
        one = known.get(id(operand))
        error = None if one is None else one.held.error_of(one.tensor)
        if one is not None and error is not None:
            levels.append(error.level if error.finite else _level(one.held.like(one.tensor)))
        else:
            levels.append(_level(operand))
    return levels


def _ratio(one: float, other: float) -> float:
    return one / other if other else _WIDEST
