"""What is known of each line of the program: how far its values are from their shadow, and where that comes from.

A row is one operation at one line. Its `parent` is the row that computed the input with the largest error, so a chain
of rows leads from where values leave the program back to the line at which they were spoilt.
"""

import enum
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF, HALF_ULP
from ..watch.sites import Site
from .measure import Error, worst

# Measured: with a quarter of it, a half, twice or four times as much no program of DG9 and no healthy case comes out
# otherwise (`_STALLED` and `_MANY` were not varied).
LARGE = 0.02  # an error that is no mere rounding
LOST = 0.5  # an error that leaves nothing of a value
OF_A_COUNT = 1.05  # half ulps: one rounding of a count makes no more than one
_UNSEEN, _BEYOND = 100, 10  # times the error of a row, as it was measured last, and times the size of its results
_FACTOR = 8  # times the error that came in
_ROUNDS = 4  # and where it builds up in a loop, times that of what is new in a round
_STALLED = 0.5, 0.05  # share of values that nothing changed, and the error of the total
TOTAL = 0.05  # of the largest values that a line had: what is smaller is as good as zero
_MANY = 20_000  # rows, from which on modules are not told apart any more
_STAYS, _MOST = 0.6, 64  # of the values that one change should have changed, and how many these are at least
_ROUNDINGS = 64  # an error that roundings of a dtype make, in its half ulps
_MERE = 4  # half ulps that a few roundings make, and times as large that an error was before it averaged out
_STEERS = 64  # visits
_SCALES = frozenset(["mul", "div"])
_COLLIDED = 0.05  # share of whole numbers that are another one


class Cause(enum.Enum):
    """What a line does to values."""

    BORN = "born"  # from finite values come some that are not
    FLUSHED = "flushed"  # from others comes zero
    STALLED = "stalled"  # what is added is rounded away, again and again
    COLLIDED = "collided"  # whole numbers become others
    AMPLIFIED = "amplified"  # a small error becomes a large one


class Row:
    """One operation at one line, in forward or backward."""

    __slots__ = (
        "absorbed",
        "addend",
        "against",
        "autocast",
        "backward",
        "beside",
        "born",
        "brings",
        "builds_up",
        "cancellation",
        "changed",
        "compared",
        "count",
        "counts",
        "course",
        "decided",
        "digits",
        "distinct",
        "dtype",
        "error",
        "exact",
        "factor",
        "flipped",
        "flushed",
        "follows",
        "furthest",
        "given",
        "incoming",
        "integers",
        "key",
        "largest",
        "leads",
        "left",
        "looked_up",
        "lost",
        "module",
        "name",
        "node",
        "of",
        "other_place",
        "parent",
        "previous",
        "ranks",
        "reach",
        "seen",
        "sets",
        "sides",
        "since",
        "site",
        "stalled",
        "stuck",
        "taken",
        "terms",
        "trained",
        "unmoved",
        "unread",
        "visits",
        "whole",
        "wrong",
    )  # fmt: skip

    def __init__(self, name: str, site: Site, module: str | None, dtype: torch.dtype, backward: bool) -> None:
        self.name, self.site, self.module, self.dtype, self.backward = name, site, module, dtype, backward
        self.visits = 0
        self.exact = False  # it rounds nothing, it only moves values
        self.brings: Row | None = None  # then: the row that has computed these
        self.node: Any = None  # the line that what it computes from, or writes to, comes from
        self.autocast: str | None = None  # the device of the region that casts what goes in, if one does
        self.since = math.inf  # the operation of the program at which it spoiled values first
        self.error = 0.0  # the largest that was measured, of the worst row of a tensor
        self.whole = 0.0  # that of all its values
        self.incoming = 0.0  # the error of its inputs at that measurement
        self.parent: Row | None = None
        self.against: Row | None = None  # of a difference, the row of the other operand
        self.beside: tuple[Row, ...] = ()  # of its other inputs, those that had lost finite values too
        self.taken: Row | None = None  # of a difference, the sum in which what is left of it had lost its digits
        self.previous: Row | None = (
            None  # the row that computed an input of this shape: the last round of a running total
        )
        self.given = False  # not computed here: its values came in so
        self.unread = False  # there are values that are not finite, and that no operation has read
        self.furthest: Tensor | None = None  # a value, and what it would be
        self.seen = 0  # the visit after which that was
        self.largest = 0.0  # what its values were like, at most: their root mean square
        self.reach = 0.0  # the largest size of its results, right or wrong
        self.count = 0  # of values that were looked at
        self.lost = self.flushed = 0  # of these
        self.born = self.of = 0  # values that are not finite, of how many
        self.stalled = 0.0
        self.course: list[tuple[int, float, float]] = []  # of what it writes to, see `moves.Path`
        self.stuck = 0  # since which visit values stand still that are written to again and again
        self.trained: dict[int, bool] = {}  # parameters that it writes, and whether they stand still
        self.digits = 0.0  # of a gradient: the roundings of what it is the difference of, as a share of it
        self.unmoved: tuple[int, int] = (0, 0)  # values that one change has left as they were, of how many
        self.follows = False  # what is written to again moves as its shadow does
        self.factor: float | None = None  # one in place that is 1 in the dtype of the values
        self.absorbed: tuple[int, int] | None = None  # values of a parameter that are lost beside a number
        self.wrong: tuple[int, int] | None = None  # whole numbers that are another one, of how many
        self.distinct: tuple[int, int] | None = None  # how many there were, and are
        self.key: tuple[tuple[int, int], tuple[int, int]] | None = None  # both, also of what comes with roundings
        self.cancellation = math.inf  # of a sum: how much larger than it its terms were, at least
        self.left: list[float] | None = None  # of a difference of two tensors: the share that each is of it, at most
        self.terms = 0.0  # what these were like, at most
        self.builds_up = False  # its error is that of many rounds of a loop
        self.counts = False  # a running total of whole numbers, or of one number, each of which is meant
        self.addend: float | None = None  # a number of the program's that it has added
        self.decided = self.flipped = 0
        self.leads = False  # it chooses among what comes of its last choice, as a beam search does
        self.compared = 0.0  # the error of what is compared, where some of it comes out otherwise
        self.sets: tuple[int, int] = (0, 0)  # of several places that one row has: how many are others, of how many
        self.sides: tuple[int, ...] = (0, 0)  # comparisons that are true in the wider dtype, and that are false
        self.ranks: tuple[int, int] = (0, 0)  # of ranks, or of first places of what is sorted: how many are others
        self.other_place: tuple[int, int] | None = None  # one of these, and what it would be
        self.integers = False  # computed from integers that the dtype does not have
        self.looked_up: torch.dtype | None = None  # in which values are equal that were compared, and not found
        self.changed: tuple[float, float] | None = None  # a choice, and what it would be

    def __str__(self) -> str:
        return f"{self.site.expression or self.name} at {self.site}"

    def is_born(self, bad: int, of: int) -> None:
        """Values that are not finite, of how many; 0 where those that a device had are gone, and not counted."""
        if not self.of or of:
            self.born, self.of = (self.born if self.of else 0) + bad, self.of + of

    def shows(self, values: Tensor, shadow: Tensor) -> None:
        """Keep the value that is furthest from its shadow, as an example."""
        self.furthest, self.seen = worst(values, shadow), self.visits

    def ends(self, values: Tensor, shadow: Callable[[Tensor], Tensor]) -> None:
        """Show what a total has come to, as its last values say most; a number that was finite at each look, too."""
        if self.cause is Cause.STALLED or (values.is_cpu and values.numel() == 1 and not values.isfinite()):
            self.shows(values, shadow(values))

    @property
    def example(self) -> tuple[float, float] | None:
        """A value, and what it would be."""
        if self.furthest is None:
            return None
        value, shadow = (float(abs(n)) if isinstance(n, complex) else float(n) for n in self.furthest.tolist())
        return value, shadow

    @property
    def half_ulp(self) -> float:
        return HALF_ULP.get(self.dtype, 0.0)

    @property
    def by_itself(self) -> float:
        """The largest error that the roundings of its own dtype make."""
        return min(LARGE, _ROUNDINGS * self.half_ulp)

    @property
    def may_be_rounding(self) -> bool:
        """Whether its error may be roundings of its own dtype: an error of half precision is none of float32."""
        return self.dtype in HALF or self.error <= _ROUNDINGS * self.half_ulp

    @property
    def grows(self) -> bool:
        """Whether at least half of its error is its own."""
        return self.error > 0 and self.incoming <= self.error / 2

    @property
    def cause(self) -> Cause | None:
        """What it does to values, if anything."""
        if self.lost and not math.isinf(self.incoming):
            return Cause.BORN
        if self.stuck or (self.stalled > _STALLED[0] and self.error > _STALLED[1]):
            return Cause.STALLED
        if self.wrong is not None and self.wrong[0] > _COLLIDED * self.wrong[1]:
            return Cause.COLLIDED
        if self.flushed > self.count / 2 and self.error > 0.5:
            return Cause.FLUSHED
        factor = _ROUNDS if self.builds_up else _FACTOR
        if self.counts and self.error > max(OF_A_COUNT * self.half_ulp, self.incoming):
            return Cause.AMPLIFIED
        if self.error > max(LARGE, factor * max(self.incoming, self.half_ulp)):
            return Cause.AMPLIFIED
        return None

    @property
    def steers(self) -> bool:
        """Whether each of its many visits decided one thing, as the condition of a loop does, or what goes in next."""
        return self.visits > _STEERS and (self.decided == self.visits or self.leads)

    @property
    def stays(self) -> bool:
        """Whether a change is lost on most values."""
        return self.unmoved[0] > _STAYS * max(_MOST, self.unmoved[1]) and not self.follows

    def chain(self) -> Iterator["Row"]:
        """This row and those that its error comes from, each once."""
        seen: set[int] = set()
        row: Row | None = self
        while row is not None and id(row) not in seen:
            seen.add(id(row))
            yield row
            row = row.parent

    def comes_from(self, other: "Row") -> bool:
        """Whether another row is in its chain, which is asked at each measurement."""
        seen: set[int] = set()
        row: Row | None = self
        while row is not None and row is not other and id(row) not in seen:
            seen.add(id(row))
            row = row.parent
        return row is other

    def scales(self, numbers: "Row") -> bool:
        """Whether it computes from whole numbers of float32 what is measured: they were scaled since."""
        since = itertools.takewhile(lambda row: row is not numbers, self.chain())
        return numbers.dtype not in HALF and any(row.name in _SCALES for row in since)

    def born_beside(self) -> Iterator["Row"]:
        """The rows that lost finite values which came together with those of this chain: each of them is to change."""
        for step in self.chain():
            for other in step.beside:
                birth = next((row for row in other.culprits() if row.cause is Cause.BORN), None)
                if birth is not None:
                    yield birth

    def culprits(self) -> Iterator["Row"]:
        """The rows behind this one that spoil values, the nearest first.

        Those that only make more of what was wrong before come last: nothing that is done to them helps. Infinities
        that a mask or a bound has taken back spoil nothing.
        """
        chain = list(self.chain())
        back = next((place for place, row in enumerate(chain) if 0 < row.error <= row.by_itself), len(chain))
        born = [row for place, row in enumerate(chain) if row.cause is Cause.BORN and place > back]
        spoil = [place for place, row in enumerate(chain) if row.cause is not None and row not in born]
        mere = []
        for place, before in itertools.pairwise(spoil):
            row, between = chain[place], chain[place + 1 : before]
            handed_on = row.incoming > row.by_itself and all(one.error > one.by_itself for one in between)
            if row.cause is Cause.AMPLIFIED and (handed_on or row.incoming >= LOST):
                mere.append(row)
        yield from [chain[place] for place in spoil if chain[place] not in mere]
        yield from mere

    def rounded(self) -> "Row | None":
        """The row behind this one in which the error was rounded that this one makes larger.

        Of a difference it is in one operand alone: what both have in common is no part of it, but for what both have
        lost. An error that has averaged out, as in a sum, to less than a rounding of what it is now is no part either.
        """
        if self.taken is not None:
            return self.taken
        rows, common, own = list[Row](), set[Row](), False
        for row in self.chain():
            others = any(one.cause is Cause.AMPLIFIED for one in rows[1:])  # it made two errors of one, as a sine does
            if own := row in common and not others and any(not one.exact and one.may_be_rounding for one in rows[1:]):
                break
            rows.append(row)
            other = () if row.against is None else tuple(row.against.chain())
            if row.parent not in other:  # else both are of one line
                common.update(other)
        rows = [row for row in rows[1:] if not row.exact] or rows[1:]
        grown = [row for row in rows if row.grows]
        mine = [row for row in grown if row.may_be_rounding]
        first = next(iter([*mine, *(rows[-1:] if own else ()), *grown, *rows[-1:]]), None)
        for row, before in itertools.pairwise(rows):
            if row is first:
                break
            if row.error <= _MERE * row.half_ulp and _MERE * row.error < before.error:
                return row
        return first

    def measured(self, error: Error, effective: float, incoming: float, parent: "Row | None") -> bool:
        """Enter what was measured; whether it is worse than all before."""
        if self.error and not self.lost and math.isinf(incoming):  # NaN that comes in says nothing of the line
            return False
        self.count += error.count
        self.lost += error.lost
        self.largest = max(self.largest, error.level)
        self.reach = max(self.reach, error.level + error.spread)
        if 0 < error.level < TOTAL * self.largest:  # as good as zero: an error of it is one of little
            effective *= error.level / (TOTAL * self.largest)
        own = bool(error.lost) and math.isinf(self.incoming) and not math.isinf(incoming)  # until now it came in
        worse = own or effective > self.error
        if worse:
            self.error, self.incoming = effective, incoming
            self.parent = self.parent if parent is None else parent
        return worse

    def grew(self, error: float, spread: float) -> bool:
        """Whether its result is wrong by far more than where it was measured, and than all it comes from was large.

        Then it was spoilt at a visit in between.
        """
        if self.cause is not None or self.backward or spread < _BEYOND * self.reach or error < _UNSEEN * self.error:
            return False
        steps = list(self.chain())
        if not any(step.dtype in HALF for step in steps):  # in float32 a system that is not stable does that
            return False
        if spread < _BEYOND * max(step.terms for step in steps):  # a difference that is zero but for roundings
            return False
        self.error = self.whole = error
        return self.cause is not None

    def convict(self, error: float, whole: float, source: "Row | None") -> bool:
        """A difference that was judged by what was subtracted may matter by itself; whether it does.

        Not where a line on the way from it to the `source` of the error has spoilt values in a way of its own.
        """
        for row in () if source is None else source.chain():
            if row is self:
                break
            if row.cause not in (None, Cause.AMPLIFIED):
                return False
        self.error, self.whole = max(self.error, error), max(self.whole, whole)
        return True


class Rows:
    """All rows of one audit."""

    def __init__(self) -> None:
        self._of: dict[Any, Row] = {}
        self._node, self._ran = -1, dict[str, list[int]]()

    def place_in(self, node: int, name: str, operation: int) -> int:
        """The how manieth of its name an operation is in a node of autograd: that of `x ** 2` multiplies twice."""
        if node != self._node:
            self._node, self._ran = node, {}
        ran = self._ran.setdefault(name, [])
        if operation not in ran[-1:]:
            ran.append(operation)
        return len(ran)

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self._of.values()))

    def at(
        self, name: str, site: Site, module: str | None, dtype: torch.dtype, backward: bool,
        source: Row | None = None, place: int = 0,
    ) -> Row:  # fmt: skip
        """The row of a line; one that only moves values has a row for each `source`, as they are of several lines.

        `place` tells operations apart that one line does in backward.
        """
        brings = source.brings if source is not None and source.exact else source
        key = (id(site), name, dtype, backward, place, *((module, brings) if len(self._of) < _MANY else (None, None)))
        row = self._of.get(key)
        if row is None:
            row = self._of[key] = Row(name, site, module, dtype, backward)
            row.brings = brings
        return row
