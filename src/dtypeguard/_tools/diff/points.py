"""Places at which both programs have the same tensor, and how far it is apart there."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .distances import bound, counted, distance, roundoff, units, worse
from .match import Calls, Match
from .tape import Key, Named, Tape, kind_of, paired


@dataclass(slots=True)
class Point:
    """A place where both programs have the same tensor: what a module gets, or what it returns.

    Attributes:
        match: the modules; for what a module gets, those that call it.
        key: the call of b.
        before: the module that gets it, with its argument; empty for a result.
        site: the line of b that calls the module.
        apart: the distance of the two programs in float64.
        bound: how far rounding takes them apart there.
        errors: the distances of a and b, as they are, to float64.
        roundings: how many roundings of each number these are.
        distance: between a and b as they are.
    """

    match: Match
    key: Key
    before: str
    site: str
    apart: float
    bound: float
    errors: tuple[float, float]
    roundings: tuple[float, float]
    distance: float

    @property
    def differs(self) -> bool:
        """Whether more than rounding differs."""
        return not self.apart <= self.bound

    @property
    def worse(self) -> str:
        """Which of the two rounds worse, or nothing."""
        return "" if self.differs else worse(*self.roundings)


def points_of(
    calls: Calls, a: Tape, b: Tape, wide_a: Tape, wide_b: Tape, eps: float, tables: float = 0.0
) -> Iterator[Point]:
    """All places at which both have the same tensor, in b's order; `tables` is what rounding changed in constants."""
    found: list[tuple[int, Point]] = []
    for key, call in calls.items():
        low, wide, reference = b.passages.get(key), wide_b.passages.get(key), wide_a.passages.get(call[1][0])
        if low is None or wide is None or reference is None or any(one not in wide_a.passages for one in call[1]):
            continue
        mine, truths = expected(call, a), expected(call, wide_a)
        resized = of_other_sizes(call[0], low.inputs, mine[0])  # so are results, then
        for place, (x_b, y_b) in enumerate(((low.inputs, wide.inputs), (low.outputs, wide.outputs))):
            if place == 0 and low.parent not in calls:
                continue
            owner = calls[low.parent][0] if place == 0 and low.parent is not None else call[0]
            ulps, narrow = map(max, zip(reference.bounds[place], wide.bounds[place], strict=True))
            seconds, others = dict(x_b), dict(y_b)
            pairs = paired(x_b, mine[place])
            if (place or not pairs) and not (place and resized) and of_other_sizes(call[0], x_b, mine[place]):
                before = f"{key[0]}({x_b[0][0]})" if place == 0 else ""
                point = Point(owner, key, before, low.site, math.inf, 0.0, (0.0, 0.0), (0.0, 0.0), math.inf)
                found.append((low.times[place], point))
            for name, number in pairs.items():
                other = others.get(name)
                truth = truths[place][number][1] if number < len(truths[place]) else None
                if truth is None or other is None or other.numel() != truth.numel():
                    continue
                point = point_of(
                    (mine[place][number][1], seconds[name]), (truth, other), ulps, eps, narrow + tables,
                    match=owner, key=key, before=f"{key[0]}({name})" if place == 0 else "", site=low.site,
                )  # fmt: skip
                found.append((low.times[place], point))
    yield from (point for _, point in sorted(found, key=lambda one: one[0]))


def of_other_sizes(match: Match, x: Named, y: Named) -> list[tuple[Tensor, Tensor]]:
    """The results of modules of one name that hold not as many numbers, if there are as many results."""
    if match.how not in ("name", "names") or len(x) != len(y):
        return []
    return [
        (mine, its) for (_, mine), (_, its) in zip(x, y, strict=True)
        if kind_of(mine) == kind_of(its) and mine.numel() != its.numel()
    ]  # fmt: skip


def point_of(
    low: tuple[Tensor, Tensor], wide: tuple[Tensor, Tensor], ulps: float, eps: float, narrow: float, **where: Any
) -> Point:
    """A point from the tensors of a and b, as they are and in a wide dtype."""
    truth = wide[0]
    errors = distance(low[0], truth), distance(low[1], wide[1], truth)
    return Point(
        **where,
        apart=distance(wide[1], truth),
        bound=bound(errors, (roundoff(low[0]), roundoff(low[1])), ulps, eps, narrow),
        errors=errors,
        roundings=counted(errors, truth, low),
        distance=distance(low[1], low[0], truth),
    )


def expected(call: tuple[Match, tuple[Key, ...]], tape: Tape) -> tuple[Named, Named]:
    """What a call of b is to get and to return, as a has it."""
    match, keys = call
    parts = [tape.passages[key] for key in keys]
    first = parts[0]
    if match.channels is None:
        return first.inputs, first.outputs
    results = [part.outputs[0][1] for part in parts if part.outputs]
    if len(results) != len(parts) or any(r.shape[:-1] != results[0].shape[:-1] for r in results):
        return first.inputs, []
    whole = torch.cat(results, -1)
    if whole.shape[-1] <= int(match.channels.max()):
        return first.inputs, []
    return first.inputs, [("result", whole[..., match.channels.to(whole.device)])]


def farthest(mine: Named, other: Named) -> float | None:
    """The largest distance of tensors that stand for each other; None if there are none."""
    own = dict(mine)
    return max((distance(own[name], other[n][1]) for name, n in paired(mine, other).items()), default=None)


def between(mine: list[Tensor], other: list[Tensor]) -> float:
    """The largest distance of tensors of two results."""
    return farthest([(str(n), t) for n, t in enumerate(mine)], [(str(n), t) for n, t in enumerate(other)]) or 0.0


def units_of(outs: list[list[Tensor]], wide: list[Tensor]) -> tuple[float, float]:
    """What one rounding of each number makes in the outputs of both."""
    every = [units(truth, pair) for truth, *pair in zip(wide, outs[0], outs[1], strict=False)]
    a, b = (min((unit[side] for unit in every if unit[side]), default=0.0) for side in (0, 1))
    return a, b
