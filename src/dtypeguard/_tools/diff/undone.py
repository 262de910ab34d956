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
    points: list[Point], calls: Calls, free: tuple[Tape, Tape], limits: tuple[float, float, float],
    weights: Collection[str], halfway: Callable[[Given], Tape],
) -> tuple[dict[Key, set[Key]], set[Key]]:  # fmt: skip
    """Calls that give the same on each program's own inputs though calls in them differ; and what is only hidden.

    A scale may stand in weights or behind them, and the channels between two layers may be in any order: then a call
    that differs by half as much does change the result. What is hidden by what follows, as by a closed gate, changes
    nothing, and stays a difference. Behind the first that is none of these nothing gives the same, so calls of the same
    modules in other layers are taken with them.

    Args:
        points: in order.
        free: both in a wide dtype, on their own inputs.
        limits: what the programs make of one rounding of it; what rounding had changed before, in constants, and in
            weights.
        weights: the modules whose weights differ.
        halfway: runs b with what some calls are to return instead.
    """
    differ = {point.key: list(_around(point.key, free[1])) for point in points if point.differs}
    found: dict[Key, _Region] = {}
    for key, outer in differ.items():
        if key in found or any(one in found for one in outer):
            continue
        for one in outer:
            inner = {other for other, around in differ.items() if one in around}
            rounded = limits[2] * any(path in weights for path, _ in inner)
            known = _apart(one, calls, free, *limits[:2]) if one in calls else None
            if known and known[0] <= known[1] + rounded:
                clearly = max(known[1], _CLEARLY * known[0])
                found[one] = _Region(inner, clearly, max(clearly, rounded))
                break
        else:
            break
    cancel = _cancelling(found, calls, free, halfway)
    made = {one: region.inner & cancel for one, region in found.items() if region.inner & cancel}
    hidden = set[Key]().union(*(found[one].inner - cancel for one in made))
    alike = {_NUMBER.sub("*", path) for path, _ in made}
    more = {key: set[Key]() for key in calls if key not in made and _NUMBER.sub("*", key[0]) in alike}
    return made | more, hidden


@dataclass(slots=True)
class _Region:
    """A call that gives the same though calls in it differ.

    Attributes:
        inner: the calls that differ.
        clearly: a change of its result that is no rounding.
        same: how far what is the same inside may be apart.
    """

    inner: set[Key]
    clearly: float
    same: float


def _cancelling(
    found: dict[Key, _Region], calls: Calls, free: tuple[Tape, Tape], halfway: Callable[[Given], Tape]
) -> set[Key]:
    """Of the calls that differ, those of which half the difference changes the result around them."""
    mean = {key: _mean(key, calls, free) for region in found.values() for key in region.inner}
    pending = {
        one: [key for key in sorted(region.inner) if _changed(mean[key], free[1].passages[key]) > region.same / 2]
        for one, region in found.items()
    }
    same = {one: region.inner - set(pending[one]) for one, region in found.items()}  # they make up for what came before
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
