"""Differences that something around them makes up for, and what rounding has changed before anything runs."""

import re
from collections.abc import Callable, Collection, Iterator

import torch

from .distances import roundoff
from .match import Calls, Model
from .points import Point, expected, farthest
from .side import Given, Side
from .tape import Key, Named, Tape, is_dense, paired
from .wide import digest

_NUMBER = re.compile(r"\d+")
LEAST = 1 / 32  # of a rounding of the weights is what their roundings make of a result at least, if most are rounded
_CLEARLY = 30.0  # times what is left of it a difference must be that something makes up for


def digests(model: Model) -> set[int]:
    return {digest(tensor) for own in model.held.values() for tensor in own.values()}


def loose_of(paths: list[str], model: Model, other: set[int]) -> list[str]:
    """Unmatched modules with weights that the other model has not got: they may be made of several."""
    return [
        path for path in paths
        if model.shapes[path] and any(digest(tensor) not in other for tensor in model.weights(path).values())
    ]  # fmt: skip


def tables_of(side: Side, other: set[int]) -> float:
    """What rounding to float32 has changed in constants that the other model computes for itself, as frequencies."""
    held = () if side.model is None else side.model.buffers()
    floats = (t for t in held if t.dtype is torch.float32 and t.ndim and is_dense(t))
    return max((roundoff(t) for t in floats if digest(t) not in other), default=0.0)


def made_up_for(points: list[Point], calls: Calls, free: tuple[Tape, Tape], limits: tuple[float, float, float],
                weights: Collection[str], halfway: Callable[[Given], Tape]) -> tuple[dict[Key, set[Key]], set[Key]]:  # fmt: skip
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
    found: dict[Key, set[Key]] = {}
    apart: dict[Key, tuple[float, float]] = {}
    for key, outer in differ.items():
        if key in found or any(one in found for one in outer):
            continue
        for one in outer:
            inner = {other for other, around in differ.items() if one in around}
            rounded = limits[2] * any(path in weights for path, _ in inner)
            known = _apart(one, calls, free, *limits[:2]) if one in calls else None
            if known and (known[0] <= known[1] or rounded * LEAST <= known[0] <= known[1] + rounded):
                found[one], apart[one] = inner, known
                break
        else:
            break
    cancel = _tried(found, apart, calls, free, halfway)
    hidden = set[Key]().union(*(inner - cancel for inner in found.values() if inner & cancel))
    found = {one: inner & cancel for one, inner in found.items() if inner & cancel}
    alike = {_NUMBER.sub("*", path) for path, _ in found}
    more = {key: set[Key]() for key in calls if key not in found and _NUMBER.sub("*", key[0]) in alike}
    return found | more, hidden


def _tried(found: dict[Key, set[Key]], apart: dict[Key, tuple[float, float]], calls: Calls, free: tuple[Tape, Tape],
           halfway: Callable[[Given], Tape]) -> set[Key]:  # fmt: skip
    """Of the calls that differ, those of which half the difference changes the result around them."""
    cancel: set[Key] = set()
    clearly = {one: max(bound, _CLEARLY * left) for one, (left, bound) in apart.items()}
    pending: dict[Key, list[Key]] = {}
    for one, inner in found.items():
        for key in sorted(inner):
            mine, its = free[1].passages[key], expected(calls[key], free[0])
            if (farthest(mine.outputs, its[1]) or 0.0) > clearly[one]:
                pending.setdefault(one, []).append(key)
            elif (farthest(mine.inputs, its[0]) or 0.0) > clearly[one]:
                cancel.add(key)  # it makes up for what came before
    while any(pending.values()):
        tried = {one: keys.pop() for one, keys in pending.items() if keys}
        given = {key: _halves(key, calls, free) for key in tried.values()}
        given |= {one: free[1].passages[one].outputs for one in tried}  # what follows is not concerned
        tape = halfway(lambda key, given=given: ([], given[key]) if key in given else None)  # type: ignore[misc]
        cancel |= {
            key for one, key in tried.items()
            if (farthest(tape.passages[one].outputs, free[1].passages[one].outputs) or 0.0) > clearly[one]
        }  # fmt: skip
    return cancel


def _halves(key: Key, calls: Calls, free: tuple[Tape, Tape]) -> Named:
    """The mean of what both programs return there, each on its own inputs."""
    mine = free[1].passages[key].outputs
    its = expected(calls[key], free[0])[1]
    own = dict(mine)
    pairs = paired(mine, its)
    return [
        (name, (own[name] + its[n][1].reshape(own[name].shape)) / 2)
        for name, n in pairs.items() if own[name].is_floating_point()
    ]  # fmt: skip


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
