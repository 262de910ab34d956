"""Choices of a program that come out otherwise in the wider dtype: a place, an order, a comparison, a whole number."""

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF
from ..ops import Cancels, Operator
from .incoming import SINGLE_ERROR
from .measure import Error
from .memory import Memory, ShadowStorage
from .rows import Row

_EQUAL = 100.0  # a cancellation of what was subtracted though it is nearly equal
_SAME = 4.0  # roundings of the wider dtype
_BELOW = 16  # times the best one: beside that it is a distance among others, if they are not all alike
_SPREAD = 0.01
_MASKED = -1e4  # a score that is less was masked: which of these is chosen does not matter
_BETWEEN = frozenset(["bucketize", "searchsorted"])  # which look for a place between others
_MOVED = 0.1  # of the values that are looked for: those beside another place, if that is no mere resolution
_FINE = 0.2  # of the whole numbers: those that are others, if that is no mere resolution
_FINEST = 2.0**19  # from there float32 has hardly fractions
_FAR = 0.05  # of an axis, for a value that is sorted
_CLOSE = 0.01  # to a whole number
_SOUND = 2.0**-12  # of the largest value
_JUST = 1e-9  # a rounding of float64, or a few
_CROWDED = 0.2  # of the places of what is ranked
_BIASED, _ONE_WAY, _TIES = 0.02, 0.9, 16  # the same where ties move ranks one way, of all moves, and how many move
_HEAD, _HEADS = 64, 4  # so many of the first places, of as many times more
_NEAR = 16  # lines back, to the last choice
_COUNTS = frozenset(["sum", "count_nonzero"])
_KEPT = 64  # tensors of whole numbers
_BOUNDS = frozenset("clamp clamp_min clamp_max minimum maximum nan_to_num".split())
WHOLE = frozenset("round floor ceil trunc fix".split())
ORDERS = frozenset("gt ge lt le greater greater_equal less less_equal".split())
_AMONG = "isin"
_TWO = {torch.float32, torch.float64}
_CHANCE = 2.0**-16  # of comparisons of float32
_OF_BOUNDS, _BOUNDS_AT_LEAST = 0.2, 64  # of bounds, such whose own rounding is on the other side; and how many
_BESIDE = 0.02  # of comparisons, those with a number that one side has in fewer digits; by chance it is none
_DIFFERENCES = Cancels.DIFFERENCE, Cancels.LOSS
_CASTS = frozenset(["_to_copy", "to"])
_NUMBERS = frozenset("div _to_copy mul".split())  # they make floats of integers
_OF_A_KEY = 4  # roundings that come in with a number that things are known by, `row * columns + column`
_HAND_ON = _NUMBERS | frozenset("add sub remainder fmod clone neg abs".split())


class Choices:
    """What was chosen, and what would have been.

    Attributes:
        spoil: the rows that spoiled values when they were measured.
        whole: whether there were whole numbers that became others.
        rounds: whether the program has rounded floats to whole numbers.
    """

    def __init__(self, memory: Memory, spoil: set[Row]) -> None:
        self._memory, self.spoil = memory, spoil
        self.whole = self.rounds = False
        # By storage: floats that a program has rounded, how, what they would have been before, and where they are from.
        self._rounded: dict[int, tuple[weakref.ref[Any], Any, Tensor, Row | None]] = {}
        # By storage: comparisons of many values with one each, what they would be, and their row.
        self._ranks: dict[int, tuple[weakref.ref[Any], Tensor, Row]] = {}

    # ------------------------------------------------------------ whole numbers

    def rounded(self, op: Operator, args: Any, out: Tensor) -> None:
        """A program has rounded floats to whole numbers, which may become integers."""
        held = self._memory.get(args[0])
        if held is not None and len(args) == 1:
            if len(self._rounded) >= _KEPT:
                self._rounded.clear()
            storage, exact = out.untyped_storage(), self._memory.read(args[0], self._memory.wider[args[0].dtype])
            self._rounded[storage._cdata] = weakref.ref(storage), op.func, exact.clone(), held.row
            self.rounds = True

    def is_rounding(self, op: Operator, args: Any, node_of: Callable[[Tensor], Any]) -> bool:
        """Whether a difference is what the program rounded: its integers are of its values, not of their shadow.

        So is what a cast took from values, as it is kept for the next step where gradients are compressed.
        """
        pair = args[:2]
        if op.cancels not in _DIFFERENCES or not all(isinstance(one, Tensor) for one in pair):
            return False
        nodes = [node for node in map(node_of, pair) if node is not None]
        if len(nodes) < 2:
            return False
        both = nodes, nodes[::-1]
        cast = op.name == "sub" and any(_is_cast(*pair) for pair in both)
        return cast or (self.rounds and any(_is_rounded(*pair) for pair in both))

    def bounded(self, op: Operator, args: Any, kwargs: Any, out: Any) -> None:
        """Rounded numbers are kept within bounds, as a quantizer does: so are those that they would have been."""
        if op.name not in _BOUNDS or not self._rounded or not args or not isinstance(out, Tensor):
            return
        known = self.before_rounding(args[0])
        if known is not None:
            storage = out.untyped_storage()
            bounds = (one.to(known[1].dtype) if isinstance(one, Tensor) else one for one in args[1:])
            exact = _again(op, known[1], bounds, kwargs)
            self._rounded[storage._cdata] = weakref.ref(storage), known[0], exact, known[2]

    def before_rounding(self, tensor: Tensor) -> tuple[Any, Tensor, Row | None] | None:
        storage = tensor.untyped_storage()
        known = self._rounded.get(storage._cdata)
        if known is None or known[0]() is not storage or known[2].shape != tensor.shape:
            return None
        return known[1:]

    def integers(self, op: Operator, row: Row, inputs: list[Tensor], held: Iterable[ShadowStorage], look: bool) -> bool:
        """Whether values come of integers that their dtype does not have: each of them is meant."""
        if op.name not in _HAND_ON:
            return False
        if look and op.name in _NUMBERS and not row.integers and row.half_ulp:
            row.integers = any(int(t.abs().max()) > 0.5 / row.half_ulp for t in inputs if t.numel() and _is_integer(t))
        return row.integers or any(one.integers for one in held)

    def collides(self, row: Row, tensor: Tensor, shadow: Tensor, incoming: float, error: Error) -> None:
        """Whole numbers that become others here."""
        if tensor.numel() < 2 or tensor.is_complex() or incoming > _OF_A_KEY * row.half_ulp:
            return
        if error.finite and row.half_ulp * error.size <= 0.5:  # then no value is larger
            return
        if not 0.5 / row.half_ulp < float(shadow.abs().max()) < math.inf or not bool((shadow == shadow.round()).all()):
            return
        wrong, there, left = int((tensor != shadow).sum()), len(torch.unique(shadow)), len(torch.unique(tensor))
        known = row.key or ((0, 1), (0, 0))
        if left < there and wrong * known[0][1] > known[0][0] * tensor.numel():
            row.key = (wrong, tensor.numel()), (there, left)
            if incoming <= row.half_ulp / 4:  # it is wrong by itself, and not only as what tells things apart
                self._count(row)

    def _count(self, row: Row) -> None:
        known = row.wrong or (0, 1)
        if row.key is not None and row.key[0][0] * known[1] > known[0] * row.key[0][1]:
            (row.wrong, row.distinct), self.whole = row.key, True

    def tell_apart(self, tensor: Tensor) -> None:
        """Values say which things are the same: what comes of several roundings counts too."""
        held = self._memory.get(tensor)
        if held is not None and held.row is not None and held.row.key is not None:
            self._count(held.row)
            self.spoil.add(held.row)

    def whole_numbers(self, row: Row, out: Tensor, other: Tensor, exact: Tensor, meant: bool) -> None:
        """Integers, or results of comparisons; `exact` is what they were made of, and `meant` that each one counts."""
        differ = out != other
        if out.dtype is not torch.bool and exact.shape == out.shape:  # otherwise they are places
            double, nearest = exact.dtype is torch.float64, exact.round()
            off, size = (exact - nearest).abs(), exact.abs()
            whole = off <= (1e-6 * size).clamp(max=_CLOSE if double else math.inf)
            # A value that has the whole number is right, where the shadow is just less and cut off.
            differ &= (out != nearest) | (off > (_JUST if double else 1e-6) * size)
            if meant:
                whole = torch.ones_like(whole)
            # What is 0, as silence, or at a bound, is whole in any case.
            inner = (exact != 0) & (exact > exact.min()) & (exact < exact.max()) if exact.numel() else whole
            asked = whole[inner] if bool(inner.any()) else whole
            if 2 * int(asked.sum()) > asked.numel():  # numbers that are meant to be whole
                count = int((differ & whole).sum())
                if count:
                    row.wrong, self.whole = (count, out.numel()), True
                    self.spoil.add(row)
            elif row.name not in _BETWEEN or int(differ.sum()) <= _MOVED * differ.numel():
                # A quantizer rounds: one unit is its resolution, and sound that was computed has no more than 12 bits.
                unit = max(1.0, _SOUND * float(size.max())) if out.dtype.itemsize <= 2 and size.numel() else 1.0
                far = (out.double() - other.double()).abs() > unit
                if row.dtype is torch.float64:  # fixed point, of data that were rounded before
                    return
                differ = differ if _is_grid(row, out, size, int(differ.sum()) / differ.numel()) else far
        if out.dtype is torch.bool:
            row.sides = tuple(map(sum, zip(row.sides, (int(other.sum()), int((~other).sum())), strict=True)))
        _enter(row, differ, out, other, out.numel())

    # ------------------------------------------------------------ places

    def extreme(self, op: Operator, args: Any, kwargs: Any, out: Tensor, row: Row) -> None:
        shadow = self._memory.read(args[0], self._memory.wider[args[0].dtype])
        axis, keeps = op.argument(args, kwargs, "dim"), op.argument(args, kwargs, "keepdim", False)
        best = _again(op, shadow, args[1:], kwargs)
        if axis is None:
            mine, theirs = shadow.reshape(-1)[out.reshape(-1)], shadow.reshape(-1)[best.reshape(-1)]
        else:
            mine, theirs = (shadow.gather(axis, i if keeps else i.unsqueeze(axis)) for i in (out, best))
        _enter(row, _others(mine, theirs), out, best, out.numel())

    def picked(self, op: Operator, args: Any, kwargs: Any, out: Any, row: Row, node: Any) -> None:
        """Places with their values; `node` is the line of what they were picked of."""
        row.leads = node is not None and any(one.site is row.site for one in node.ancestors(_NEAR))
        held = self._memory.get(args[0])
        if held is None:
            return
        shadow = self._memory.read(args[0], self._memory.wider[args[0].dtype])
        best = _again(op, shadow, args[1:], kwargs)
        mine, theirs = at_places(op, args, kwargs, out, shadow), best[0]
        differ, axis = _others(mine, theirs), op.argument(args, kwargs, "dim", -1)
        if op.name == "topk" and mine.ndim:
            self._sets(row, shadow, mine.movedim(axis, -1), out[1].movedim(axis, -1), best[1].movedim(axis, -1), axis)
            return
        if op.name == "sort" and mine.ndim:
            if held.beside is None:
                ranks = best[1].argsort(axis).gather(axis, out[1])  # of what the program has at each place
                _first(row, *(one.movedim(axis, -1) for one in (ranks, mine, theirs, out[1], best[1])))
                differ &= _displaced(axis, ranks)
            else:  # of what was added to larger numbers, as a score to that of its group, each place is meant
                differ &= mine > _MASKED
                row.taken = held.beside.row
        _enter(row, differ, out[1], best[1], mine.numel())

    def _sets(self, row: Row, shadow: Tensor, mine: Tensor, out: Tensor, best: Tensor, axis: int) -> None:
        """Of several places that each row has: which are others, and for how many rows; their order does not matter."""
        values = shadow.movedim(axis, -1)
        chosen = torch.zeros_like(values, dtype=torch.bool).scatter_(-1, best, True).gather(-1, out)
        least = values.gather(-1, best)
        tied = (mine == least.amin(-1, True)) | (mine == least.amax(-1, True))
        most = values.amax(-1, True)
        far = most - values.amin(-1, True) > _SPREAD * most.abs()
        counts, all_count = ((one > _MASKED) | (far & (one >= _BELOW * most)) for one in (mine, least))
        fewer = counts.sum(-1, True) < all_count.sum(-1, True)
        others = ~chosen & ~tied & ~mine.isnan() & (counts | fewer)
        rows = others.any(-1).reshape(-1)
        row.decided, row.flipped = row.decided + out.numel(), row.flipped + int(others.sum())
        if mine.ndim > 1 and mine.shape[-1] > 1:
            row.sets = row.sets[0] + int(rows.sum()), row.sets[1] + rows.numel()
        if bool(rows.any()):
            first = int(rows.nonzero()[0])
            here, there = (set(one.reshape(-1, one.shape[-1])[first].tolist()) for one in (out, best))
            row.changed = row.other_place = next(iter(here - there), 0), next(iter(there - here), 0)

    def ranks(self, inputs: list[Tensor], out: Tensor, other: Tensor, row: Row) -> None:
        """Many values were compared with one each; how many are larger is its rank."""
        if any(1 < one.numel() < out.numel() for one in inputs):
            if len(self._ranks) >= _KEPT:
                self._ranks.clear()
            storage = out.untyped_storage()
            self._ranks[storage._cdata] = weakref.ref(storage), other, row

    def counted(self, op: Operator, args: Any, kwargs: Any, out: Any) -> None:
        """Ranks: ties change these more than comparisons, of which most are far from a draw."""
        if not self._ranks or op.name not in _COUNTS or not args or not isinstance(args[0], Tensor):
            return
        storage = args[0].untyped_storage()
        known = self._ranks.pop(storage._cdata, None)
        if known is None or known[0]() is not storage or known[1].shape != args[0].shape or out.numel() < 2:
            return
        ranks = _again(op, known[1], args[1:], kwargs)
        moved = (out - ranks).abs()
        far, places = int(moved.sum()), int((ranks + 1).sum())
        ties = (
            int((moved > 0).sum()) >= _TIES and abs(int((out - ranks).sum())) > _ONE_WAY * far
        )  # `>` counts none of them
        if far > (_BIASED if ties else _CROWDED) * places:
            known[2].ranks = int((moved > 0).sum()), moved.numel()
            place = int(moved.argmax())
            known[2].changed = int(out.reshape(-1)[place]), int(ranks.reshape(-1)[place])

    # ------------------------------------------------------------ what is looked up

    def matched(
        self, op: Operator, args: Any, out: Tensor, row_of: Callable[[], Row], due: Callable[[Row], bool],
        node_of: Callable[[Tensor], Any],
    ) -> None:  # fmt: skip
        """A value that is looked up in a table, and found only in the wider dtype; or a number that is equal to one."""
        if op.name == "ne":
            if out.ndim and not _is_meant(args[1]):  # a mask of what is not zero, or finite
                return
            out = ~out
        tensors = [one for one in args[:2] if isinstance(one, Tensor)]
        held = [one for one in map(self._shadow_of, tensors) if one is not None]
        if op.name == _AMONG or (len(tensors) == 2 and tensors[0].shape == tensors[1].shape):
            held = []  # somebody compares results
        never = _are_of_two(tensors, node_of)
        if not (held or never) or not out.numel():
            return
        row = row_of()
        row.visits += 1
        if out.ndim and not due(row):
            return
        if (never and _never_equal(op, args, out, row)) or not held:
            return
        known = [self._memory.get(one) if self._memory.wider.get(one.dtype) else None for one in tensors]
        # What was in half precision has a shadow of float32 since.
        double = all(one is None or (one.buffer.dtype is torch.float64 and one.error < SINGLE_ERROR) for one in known)
        mine, theirs = (self._wide(one, torch.float64 if double else torch.float32) for one in args[:2])
        size = torch.maximum(mine.abs(), theirs.abs())
        same = ((mine - theirs).abs() <= _SAME * torch.finfo(size.dtype).eps * size) & size.isfinite()
        there = same & (size > 0)
        # With a number of the program's; many values are zero, but one alone decides where the program goes.
        if len(tensors) == 1 and (args[1] or not out.ndim) and not torch.equal(out, same):
            row.parent, row.compared = held[0].row, max(row.compared, held[0].error)
        if int((out & ~there & (size > 0)).sum()):  # others are found instead, as of two that are nearly largest
            return
        lost = there & ~out
        if not bool(lost.any()):
            return
        row.parent = max(held, key=lambda one: one.error).row
        row.wrong = int(lost.sum()), int(there.sum())
        row.looked_up = torch.float32
        one, other = [(v if isinstance(v, Tensor) else torch.tensor(v)).expand(out.shape) for v in args[:2]]
        if self._shadow_of(tensors[0]) is not held[0] and {one.dtype, other.dtype} != _TWO:
            one, other = other, one
        _enter(row, lost, one, other, int(there.sum()))

    def beside(self, op: Operator, args: Any, out: Tensor, row: Row) -> bool:
        """Whether many values are compared with the numbers of a wider dtype that they are the roundings of.

        Such a comparison says which way each of them was rounded. In half precision some are equal by chance.
        """
        narrow = min(args[:2], key=lambda value: value.dtype.itemsize).dtype
        one, other = (value.to(narrow) for value in args[:2])
        equal = (one == other) & one.isfinite() & (one != 0) & (args[0] != args[1])
        moved = equal & (out != op.func(one, other))
        count, bounds = int(moved.sum()), min(value.numel() for value in args[:2])
        few = count <= _BESIDE * out.numel()
        if narrow in HALF:
            few = (
                bounds < _BOUNDS_AT_LEAST or count <= _OF_BOUNDS * bounds or _is_chance(equal, args[0], args[1], narrow)
            )
        if few:
            return False
        row.wrong, row.looked_up = (count, out.numel()), narrow
        _enter(row, moved, args[0].expand(out.shape), args[1].expand(out.shape), out.numel())
        return True

    def _shadow_of(self, tensor: Tensor) -> ShadowStorage | None:
        return self._memory.get(tensor) if tensor.dtype in self._memory.wider else None

    def _wide(self, value: Any, dtype: torch.dtype) -> Tensor:
        if not isinstance(value, Tensor):
            return torch.tensor(value, dtype=dtype)
        return self._memory.read(value, dtype) if value.dtype in self._memory.wider else value.to(dtype)


def _is_grid(row: Row, out: Tensor, size: Tensor, share: float) -> bool:
    """Whether whole numbers, of which a share are others, are places in a grid that is as fine as their dtype."""
    largest = float(size.max())
    if row.dtype is torch.float32 and largest > _FINEST:
        row.wrong = (round(share * out.numel()), out.numel()) if share > _BESIDE else row.wrong
        return share > _BESIDE
    return out.dtype is torch.int64 and share > _FINE and (row.dtype is torch.float32 or largest > 1 / row.half_ulp)


def _is_chance(equal: Tensor, one: Tensor, other: Tensor, narrow: torch.dtype) -> bool:
    """Whether about as many are one to three roundings away from each other, for each that is equal."""
    units = (one.float() - other.float()).abs() / (torch.finfo(narrow).eps * other.abs())
    return int(equal.sum()) < int(((units > 1) & (units <= 3)).sum()) / 2


def may_be_beside(op: Operator, args: Any) -> bool:
    """Whether values are compared with others of a wider dtype; of the same shape they are results of both."""
    if op.name not in ORDERS or not all(isinstance(one, Tensor) for one in args[:2]):
        return False
    one, other = args[:2]
    two = {one.dtype, other.dtype}
    return (two == _TWO or (torch.float32 in two and not two.isdisjoint(HALF))) and one.shape != other.shape


def _are_of_two(tensors: list[Tensor], node_of: Callable[[Tensor], Any]) -> bool:
    """Whether tensors are of float32 and of float64, neither made of the other: `x == x.float()` is a question."""
    if {one.dtype for one in tensors} != _TWO:
        return False
    one, other = map(node_of, tensors)
    return one is None or other is None or (one not in other.ancestors(_NEAR) and other not in one.ancestors(_NEAR))


def _never_equal(op: Operator, args: Any, out: Tensor, row: Row) -> bool:
    """Whether values of float32 are roundings of those of float64 that they are compared with; few are by chance."""
    one, other = (value.float() for value in args[:2])
    among = op.name == _AMONG
    same = torch.isin(one, other) if among else one == other
    lost, pairs = same & ~out, out.numel() * (other.numel() if among else 1)
    equal, count = int(same.sum()), int(lost.sum())
    if count <= max(_BESIDE * equal, _CHANCE * pairs):
        return False
    row.wrong, row.looked_up = (count, equal), torch.float32
    found = args[1][other == one[lost][0]][0] if among else args[1]
    _enter(row, lost, args[0].expand(out.shape), found.expand(out.shape), equal)
    return True


def _is_rounded(node: Any, other: Any) -> bool:
    """Whether a node is computed from integers that are those of another one, rounded to the nearest."""
    for whole in node.ancestors():
        if not whole.dtype.is_floating_point and not whole.dtype.is_complex:
            behind = list(whole.ancestors())
            if other in behind and any(one.op == "round" for one in behind[: behind.index(other)]):
                return True
    return False


def _is_cast(node: Any, other: Any) -> bool:
    """Whether a node is another one, cast and cast back."""
    while node.op in _CASTS and node.parents and node is not other:
        node, back = node.parents[0], node
        if node is other:
            return back.dtype is not other.dtype
    return False


def _is_meant(other: Any) -> bool:
    """Whether it is a number of the program's, and not a bound."""
    return isinstance(other, int | float) and other != 0 and math.isfinite(other)


def decidable(held: list[ShadowStorage]) -> bool:
    """Whether no difference of numbers is compared that are equal but for float32's rounding, as at convergence."""
    return not any(one.cancellation > _EQUAL and one.error < SINGLE_ERROR for one in held)


def _again(op: Operator, shadow: Tensor, others: Iterable[Any], kwargs: Any) -> Any:
    """What the shadow gives; what the program's call has written to (`out=`) stays as it is."""
    out = {op.names[place] for place in op.writes} & kwargs.keys()
    fresh = {name: (shadow if kwargs[name].is_floating_point() else kwargs[name]).new_empty(0) for name in out}
    return op.func(shadow, *others, **kwargs | fresh)


def at_places(op: Operator, args: Any, kwargs: Any, out: Any, shadow: Tensor) -> Tensor:
    """The shadow's values at the places that the program found."""
    if not shadow.ndim:
        return shadow.clone()
    axis, places = op.argument(args, kwargs, "dim", -1), out[1]
    keeps = op.keeps_axis or op.argument(args, kwargs, "keepdim", False)
    values = shadow.gather(axis, places if keeps else places.unsqueeze(axis))
    return values if keeps else values.squeeze(axis)


def _others(mine: Tensor, theirs: Tensor) -> Tensor:
    """Which values differ; NaN is what NaN is."""
    return (mine != theirs) & ~(mine.isnan() & theirs.isnan())


def _displaced(axis: int, ranks: Tensor) -> Tensor:
    """Which values stand far from where they would; neighbours that change places are in order but for rounding."""
    size, ndim = ranks.shape[axis], ranks.ndim
    there = torch.arange(size, device=ranks.device).view([-1 if n == axis % ndim else 1 for n in range(ndim)])
    return (ranks - there).abs() > max(1, _FAR * size)


def _first(row: Row, ranks: Tensor, mine: Tensor, theirs: Tensor, out: Tensor, best: Tensor) -> None:
    """Whether most of what is sorted to the first places belongs elsewhere, as where ties are many there."""
    size, count = ranks.shape[-1], _HEAD
    while count <= size // _HEADS:
        last = theirs[..., count - 1 : count]
        far = (mine[..., :count] - last).abs() > _EQUAL * torch.finfo(last.dtype).eps * last.abs()
        others = ((ranks[..., :count] >= count) & far).reshape(-1, count)
        worst = int(others.sum(-1).argmax())
        moved = int(others[worst].sum())
        if moved > count // 2 and moved * max(row.ranks[1], 1) > row.ranks[0] * count:
            place = int(others[worst].nonzero()[0])
            row.ranks = moved, count
            row.changed = float(out.reshape(-1, size)[worst, place]), float(best.reshape(-1, size)[worst, place])
        count *= 2


def _enter(row: Row, differ: Tensor, out: Tensor, best: Tensor, decided: int) -> None:
    """Which came out otherwise; where the shadow has the same value at both places, it does not matter."""
    differ = differ.reshape(-1)
    row.decided += decided
    row.flipped += int(differ.sum())
    if bool(differ.any()):
        place = int(differ.nonzero()[0])
        row.changed = float(out.reshape(-1)[place]), float(best.reshape(-1)[place])


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool
