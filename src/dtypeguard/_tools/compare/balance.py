"""What a set of modules saves, by the shares that one run has found, and the cheapest set that saves enough."""

import copy
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .reach import Reach, Savings
from .units import Units, inside

Point = tuple[float, float]
_EXCHANGED = 8  # of the modules of a set, the dearest
_LIKELY = 2.0  # times what shares say of a module that a run may correct them by


class Balance:
    """What is saved by keeping modules: shares that are gone, less the rounding at the doors of other modules.

    Each share, and each door, is a row of matrices that have a column for each module.
    """

    def __init__(self, savings: Savings, units: Units) -> None:
        parts, doors = defaultdict[int, float](float), defaultdict[tuple[int, int], float](float)
        for reach, share in savings.parts.items():
            parts[reach.saved(savings.narrow)] += share
        for (reach, around), cost in savings.doors.items():
            doors[reach.saved(savings.narrow) & ~around, around] += cost
        self._units = units
        self._column = {name: column for column, name in enumerate(units.names)}
        columns = [units.bits[name] for name in units.names]
        self._saved = _meet(list(parts), columns)
        self._reached = _meet([reached for reached, _ in doors], columns)
        self._within = _meet([around for _, around in doors], columns)
        self._shares = torch.tensor(list(parts.values()), dtype=torch.float64)
        self._costs = torch.tensor(list(doors.values()), dtype=torch.float64)
        self._whole = float(self._shares.clamp(min=0).sum())

    def copied(self) -> "Balance":
        """The same, to be corrected by other runs."""
        made = copy.copy(self)
        made._shares = self._shares.clone()
        return made

    def saved(self, names: Iterable[str]) -> float:
        """The share of the error² that is saved by keeping these modules."""
        saved, doors = self._saved_and_doors(names)
        return float(self._shares[saved].sum() - self._costs[doors].sum())

    def rest(self, names: Iterable[str]) -> float:
        """What is left of it, at least: where errors cancel, keeping one of both does not."""
        return self._share_left(*self._saved_and_doors(names))

    def _share_left(self, saved: Tensor, doors: Tensor) -> float:
        left = float(self._shares[~saved].clamp(min=0).sum() + self._costs[doors].sum())
        return min(left / self._whole, 1.0) if self._whole else 1.0

    def correct(self, name: str, saved: float) -> None:
        """A run has shown what keeping a module saves: its shares are scaled by it."""
        rows, doors = self._saved_and_doors([name])
        own, cost = float(self._shares[rows].sum()), float(self._costs[doors].sum())
        if own > 0:
            self._shares[rows] *= min(max((saved + cost) / own, 0.0), _LIKELY)
            self._whole = float(self._shares.clamp(min=0).sum())

    def learn(self, names: Iterable[str], others: Iterable[str], more: float) -> None:
        """Runs have shown how much more some modules save than others do: what only they save is scaled by it."""
        saved, others_saved = self._saved_and_doors(names)[0], self._saved_and_doors(others)[0]
        new, gone = saved & ~others_saved, others_saved & ~saved
        own, theirs = (float(self._shares[rows].clamp(min=0).sum()) for rows in (new, gone))
        if own > 0:
            self._shares[new] *= min(max((more * self._whole + theirs) / own, 0.0), _LIKELY)

    def steps(self, first: Sequence[str] = (), among: Sequence[str] | None = None) -> Iterator[tuple[list[str], float]]:
        """Modules to keep, one more at a time, and what is then left of the error².

        The next is the one that saves most for its parameters, beside those before it.
        """
        price, border = self._units.price, self._units.border
        among = self._units.names if among is None else among
        names = [name for name in among if name and not any(name == one or inside(name, one) for one in first)]
        places = {name: place for place, name in enumerate(names)}
        chosen, columns = list(first), torch.tensor([self._column[name] for name in names], dtype=torch.long)
        prices = torch.tensor([price([name]) for name in names], dtype=torch.float64)
        gains = _Gains(self, columns, *self._state(first))
        alive = torch.ones(len(names), dtype=torch.bool)
        while bool(alive.any()):
            best = int((gains.of / prices).masked_fill(~alive, -1.0).argmax())
            if gains.of[best] <= 0 or not alive[best]:
                return
            name = names[best]
            for other in self._units.holders[name]:
                if other in places:
                    prices[places[other]] = max(float(prices[places[other]]) - price([name]), border)
            for other in (name, *self._units.parts.get(name, ())):
                if other in places:
                    alive[places[other]] = False
            chosen = [other for other in chosen if not inside(other, name)] + [name]
            gains.keep(int(columns[best]))
            yield chosen, gains.rest

    def cheapest(self, level: float, first: Sequence[str] = ()) -> list[str] | None:
        """The cheapest modules that are found with which at most so much of the error² is left; None for none."""
        if self.rest(first) <= level:
            return list(first)
        for chosen, rest in self.steps(first):
            if rest <= level:
                return self._exchanged(self._needed(chosen, level, first), level, first)
        return None

    def _needed(self, names: list[str], level: float, first: Sequence[str]) -> list[str]:
        """Those without which more would be left, the dearest left out first."""
        for name in sorted(names, key=lambda one: -self._units.price([one])):
            others = [other for other in names if other != name]
            if name not in first and self.rest(others) <= level:
                names = others
        return names

    def _exchanged(self, names: list[str], level: float, first: Sequence[str]) -> list[str]:
        """The dearest of them against cheaper ones that do as well: parts of it, or others."""
        price = self._units.price
        for name in sorted(names, key=lambda one: -price([one]))[:_EXCHANGED]:
            if name in first or name not in names:
                continue
            others = [other for other in names if other != name]
            among = [one for one in self._units.names if price([one]) < price([name])]
            for chosen, rest in self.steps(others, among):
                if rest <= level:
                    names = min(names, self._needed(chosen, level, first), key=price)
                    break
        return names

    def _state(self, names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """What keeping modules meets: shares, doors that they reach, doors that are in them."""
        return self._any(self._saved, names), self._any(self._reached, names), self._any(self._within, names)

    def _saved_and_doors(self, names: Iterable[str]) -> tuple[Tensor, Tensor]:
        """Which shares are saved, and which doors round."""
        saved, reached, within = self._state(list(names))
        return saved, reached & ~within

    def _any(self, rows: Tensor, names: Iterable[str]) -> Tensor:
        columns = [self._column[name] for name in names if name in self._column]
        return rows[:, columns].any(1)


class _Gains:
    """What each module saves beside those that are kept, as more and more are."""

    def __init__(self, balance: Balance, columns: Tensor, saved: Tensor, reached: Tensor, within: Tensor) -> None:
        self._balance, self._columns = balance, columns
        self._saved, self._reached, self._around = saved, reached, within
        self._shares = balance._shares.clamp(min=0)
        self.of = torch.zeros(len(columns), dtype=torch.float64)
        self._add(~saved, torch.ones_like(reached), 1.0)

    @property
    def rest(self) -> float:
        """What is left of the error²."""
        return self._balance._share_left(self._saved, self._reached & ~self._around)

    def keep(self, column: int) -> None:
        """Keep one more."""
        balance = self._balance
        saved = balance._saved[:, column] & ~self._saved
        doors = (balance._reached[:, column] & ~self._reached) | (balance._within[:, column] & ~self._around)
        self._add(saved, doors, -1.0)
        self._saved, self._reached = self._saved | saved, self._reached | balance._reached[:, column]
        self._around = self._around | balance._within[:, column]
        self._add(torch.zeros_like(saved), doors, 1.0)

    def _add(self, shares: Tensor, doors: Tensor, sign: float) -> None:
        """Count some shares that are open, and some doors as they are now."""
        balance = self._balance
        self.of += sign * (self._shares[shares] @ balance._saved[shares][:, self._columns].double())
        reached, around, costs = self._reached[doors], self._around[doors], balance._costs[doors]
        new, opened = balance._reached[doors][:, self._columns], balance._within[doors][:, self._columns]
        self.of -= sign * (torch.where(~reached & ~around, costs, 0) @ (new & ~opened).double())
        self.of += sign * (torch.where(reached & ~around, costs, 0) @ opened.double())


class Expected:
    """The error over what is left of the error²: through what was measured, and on with its square root.

    More that is left costs no less: a set that was expected to be better than it is counts for all that should be
    worse.
    """

    def __init__(self, measured: Iterable[Point]) -> None:  # what shares leave, and the error that a run has shown
        self._points, worst = list[Point](), 0.0
        for rest, error in sorted(measured):
            if rest > 0 and 0 < error < math.inf:
                worst = max(worst, error)
                self._points.append((math.log(rest), math.log(worst)))

    def error(self, rest: float) -> float:
        """The error of what leaves so much."""
        return math.exp(_through(self._points, math.log(rest), 0.5)) if rest > 0 and self._points else 0.0

    def rest(self, error: float) -> float:
        """How much may be left for an error."""
        if not error > 0 or not self._points:
            return 0.0
        return math.exp(min(_through([(y, x) for x, y in self._points], math.log(error), 2.0), 0.0))


def cover(masks: Sequence[int], units: Units) -> list[str]:
    """The cheapest modules that are found in whose dtype no value overflows; a mask tells which would save one."""
    names = [name for name in units.names if name]
    rows = _meet(list(dict.fromkeys(masks)), [units.bits[name] for name in names])
    prices = torch.tensor([units.price([name]) for name in names], dtype=torch.float64)
    chosen: list[int] = []
    missing = rows.any(1)
    while bool(missing.any()):
        best = int((rows[missing].sum(0) / prices).argmax())
        chosen.append(best)
        missing &= ~rows[:, best]
    for one in sorted(chosen, key=lambda column: -float(prices[column])):  # what was taken early may be needed no more
        without = [other for other in chosen if other != one]
        if torch.equal(rows[:, without].any(1), rows[:, chosen].any(1)):
            chosen = without
    return [names[column] for column in chosen]


def measured(saved: Mapping[str, float], units: Units) -> Savings:
    """Shares that runs have shown: what each module saves, and nothing that tells the others apart."""
    savings = Savings()
    for name, share in saved.items():
        savings.parts[Reach(inside=units.bits[name])] += max(share, 0.0)
    others = [name for name in units.leaves if name not in saved]
    rest = max(1.0 - sum(max(share, 0.0) for share in saved.values()), 0.0)
    for name in others:
        savings.parts[Reach(inside=units.bits[name])] += rest / len(others)
    return savings


def _meet(masks: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Whether the bits of each row and those of each column meet."""
    width = max((mask.bit_length() for mask in columns), default=0)
    rows = _matrix(masks, width) @ _matrix(columns, width).T
    return rows > 0


def _matrix(masks: Sequence[int], width: int) -> Tensor:
    """The bits of several masks, as zeros and ones."""
    size = width // 8 + 1
    every = (1 << width) - 1
    data = b"".join((mask & every).to_bytes(size, "little") for mask in masks)
    if not data:
        return torch.zeros(0, 8 * size)
    packed = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, size, 1)
    return (packed >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1).float()


def _through(points: Sequence[Point], x: float, slope: float) -> float:
    """On the line through points, which goes on with a slope at both ends."""
    place = bisect_left(points, x, key=lambda point: point[0])
    (left, low), (right, high) = points[max(place - 1, 0)], points[min(place, len(points) - 1)]
    if place in (0, len(points)):
        return low + slope * (x - left) if place else high + slope * (x - right)
    return low + (high - low) * (x - left) / (right - left)
