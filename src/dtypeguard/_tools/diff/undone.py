"""Differences that something around them makes up for, and what rounding has changed before anything runs."""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch

from .distances import roundoff
from .match import Calls, Model
from .points import Point, expected, farthest
from .side import Given, Side
from .tape import Key, Named, Passage, Tape, is_dense, paired
from .wide import digest

_NUMBER = re.compile(r"\d+")
_CLEARLY = 5.0  # times what is left of it a difference must be that something makes up for


def digests(model: Model) -> set[int]:
    return {digest(tensor) for own in model.held.values() for tensor in own.values()}


def loose_of(paths: list[str], model: Model, other: set[int]) -> list[str]:
    """Unmatched modules with weights that the other model has not got: they may be made of several."""
    return [
        path for path in paths
        if model.shapes[path] and any(digest(tensor) not in other for tensor in model.weights(path).values())
    ]  # fmt: skip


def tables_of(side: Side, other: Model) -> float:
    """What rounding has changed in constants that the other model computes for itself, as frequencies.

    One in a dtype below float32 counts where the model computes in it, and the other holds none of its size.
    """
    held, known = () if side.model is None else side.model.buffers(), digests(other)
    sizes = {tensor.numel() for own in other.held.values() for tensor in own.values()}
    floats = (t for t in held if t.is_floating_point() and t.ndim and is_dense(t) and digest(t) not in known)
    ours = (t for t in floats if t.dtype is torch.float32 or (t.dtype is side.dtype and t.numel() not in sizes))
    return max(map(roundoff, ours), default=0.0)


def made_up_for(
    points: list[Point], calls: Calls, free: tuple[Tape, Tape], limits: tuple[float, float],
    weights: Collection[str], noise: Callable[[Key], float], halfway: Callable[[Given], Tape],
) -> tuple[dict[Key, set[Key]], set[Key]]:  # fmt: skip
    """Calls that give the same on each program's own inputs though calls in them differ; and what is only hidden.

    A scale may stand in weights or behind them, and the channels between two layers may be in any order: then a call
    that differs by half as much does change the result. What is hidden by what follows, as by a closed gate, changes
    nothing, and stays a difference. Behind the first that is none of these nothing gives the same, so calls of the same
    modules in other layers are taken with them.

    Args:
        points: in order.
        free: both in a wide dtype, on their own inputs.
        limits: what the programs make of one rounding of it, and what rounding had changed before, in constants.
        weights: the modules whose weights differ.
        noise: how far the result of a call is moved by the rounding of these weights.
        halfway: runs b with what some calls are to return instead.
    """
    differ = {point.key: list(_around(point.key, free[1])) for point in points if point.differs}
    code = {point.key for point in points if point.differs and point.before}  # of modules, which may hold a scale
    found: dict[Key, _Region] = {}
    for exactly in (True, False):
        told = {_NUMBER.sub("*", path) for region in found.values() for path, _ in region.inner}
        for key, outer in differ.items():
            for one in outer if key not in found and not any(other in found for other in outer) else ():
                inner = {other for other, around in differ.items() if one in around}
                first = min((n for n, k in enumerate(differ) if k in inner and k[0] in weights
                             and _NUMBER.sub("*", k[0]) not in told), default=None)  # fmt: skip
                known = _apart(one, calls, free, *limits) if one in calls else None
                if known is None or (first is None and not exactly):
                    continue
                rounded = 0.0 if exactly else noise(one)
                if known[0] <= known[1] + rounded:
                    clearly = max(known[1], _CLEARLY * known[0])
                    later = {k for k in list(differ)[first:] if k in code or k[0] in weights} if rounded else set()
                    same = {key: max(clearly, rounded) if key in later else known[1] for key in inner}
                    found[one] = _Region(same, clearly)
                    break
    cancel = _cancelling(found, calls, free, halfway)
    made = {one: region.inner.keys() & cancel for one, region in found.items() if region.inner.keys() & cancel}
    hidden = set[Key]().union(*(found[one].inner.keys() - cancel for one in made))
    alike = {_NUMBER.sub("*", path) for path, _ in made}
    more = {key: set[Key]() for key in calls if key not in made and _NUMBER.sub("*", key[0]) in alike}
    return made | more, hidden


@dataclass(slots=True)
class _Region:
    """A call that gives the same though calls in it differ.

    Attributes:
        inner: the calls that differ, and how far their results may be apart and be the same; where weights were rounded
            before, by what that does.
        clearly: a change of its result that is no rounding.
    """

    inner: dict[Key, float]
    clearly: float


def _cancelling(
    found: dict[Key, _Region], calls: Calls, free: tuple[Tape, Tape], halfway: Callable[[Given], Tape]
) -> set[Key]:
    """Of the calls that differ, those of which half the difference changes the result around them."""
    mean = {key: _mean(key, calls, free) for region in found.values() for key in region.inner}
    pending = {
        one: [key for key in sorted(region.inner) if _changed(mean[key], free[1].passages[key]) > region.inner[key] / 2]
        for one, region in found.items()
    }
    same = {
        one: region.inner.keys() - set(pending[one]) for one, region in found.items()
    }  # they make up for what came before
    cancel: set[Key] = set()
    while any(pending.values()):
        tried = {one: keys.pop() for one, keys in pending.items() if keys}
        given = {key: mean[key] for key in tried.values()}
        given |= {one: free[1].passages[one].outputs for one in tried}  # what follows is not concerned
        tape = halfway(lambda key, given=given: ([], given[key]) if key in given else None)  # type: ignore[misc]
        for one, key in tried.items():
            if _changed(tape.passages[one].outputs, free[1].passages[one]) > found[one].clearly:
                cancel |= {key, *same[one]}
    return cancel


def _changed(results: Named, passage: Passage) -> float:
    return farthest(results, passage.outputs) or 0.0


def _mean(key: Key, calls: Calls, free: tuple[Tape, Tape]) -> Named:
    """The mean of what both programs return there, each on its own inputs; of whole numbers a's."""
    mine = free[1].passages[key].outputs
    its = expected(calls[key], free[0])[1]
    own = dict(mine)
    pairs = ((name, own[name], its[n][1].reshape(own[name].shape)) for name, n in paired(mine, its).items())
    return [(name, (x + y) / 2 if x.is_floating_point() else y) for name, x, y in pairs]


def _apart(key: Key, calls: Calls, free: tuple[Tape, Tape], made: float, lost: float) -> tuple[float, float] | None:
    """How far the results of a call are apart on each program's own inputs, and how far rounding takes them."""
    mine, its = free[1].passages.get(key), [free[0].passages.get(one) for one in calls[key][1]]
    if mine is None or not all(its) or not any(t.is_floating_point() for _, t in mine.outputs):
        return None
    apart = farthest(mine.outputs, expected(calls[key], free[0])[1])
    ulps, narrow = map(max, zip(mine.bounds[1], *(one.bounds[1] for one in its if one), strict=True))
    return None if apart is None else (apart, ulps * made + narrow + lost)


def _around(key: Key, tape: Tape) -> Iterator[Key]:
    passage = tape.passages.get(key)
    while passage is not None and passage.parent is not None:
        yield passage.parent
        passage = tape.passages.get(passage.parent)


def outside(calls: Calls, outer: Collection[Key], b: Tape) -> Calls:
    """The calls that are in none of these."""
    return {key: call for key, call in calls.items() if not any(one in outer for one in _around(key, b))}


def named_again(found: dict[Key, set[Key]], before: list[Point], after: list[Point], b: Tape) -> list[Point]:
    """Of the first call that differs, if it was taken with others: what in it is not made up for in those."""
    first = next((point.key for point in after if point.differs), None)
    if first is None or first not in found:
        return []
    known = {_NUMBER.sub("*", path) for keys in found.values() for path, _ in keys}
    return [
        point for point in before
        if point.differs and first in _around(point.key, b) and _NUMBER.sub("*", point.key[0]) not in known
    ]  # fmt: skip
