"""Differences that something around them makes up for, and what rounding has changed before anything runs."""

import re
from collections.abc import Collection, Iterator

import torch

from .distances import roundoff
from .match import Calls, Model
from .points import Point, expected, farthest
from .side import Side
from .tape import Key, Tape, is_dense
from .wide import digest

_NUMBER = re.compile(r"\d+")


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


def made_up_for(points: list[Point], calls: Calls, free: tuple[Tape, Tape], made: float,
                lost: float) -> dict[Key, set[Key]]:  # fmt: skip
    """Calls that give the same on each program's own inputs though several in them differ; with those that differ.

    One makes up for another: a scale may stand in weights or behind them, and the channels between two layers may be in
    any order. What alone differs is hidden by what follows, and stays a difference. Behind the first that is none of
    these nothing gives the same, so calls of the same modules in other layers are taken with them.

    Args:
        points: in order.
        free: both in a wide dtype, on their own inputs.
        made: what the programs make of one rounding of it.
        lost: what rounding had changed before.
    """
    differ = {point.key: list(_around(point.key, free[1])) for point in points if point.differs}
    found: dict[Key, set[Key]] = {}
    for key, outer in differ.items():
        if key in found or any(one in found for one in outer):
            continue
        for one in outer:
            inner = {other for other, around in differ.items() if other == one or one in around}
            if one in calls and len(inner) > 1 and _agree(one, calls, free, made, lost):
                found[one] = inner - {one}
                break
        else:
            break
    alike = {_NUMBER.sub("*", path) for path, _ in found}
    return found | {key: set() for key in calls if key not in found and _NUMBER.sub("*", key[0]) in alike}


def _agree(key: Key, calls: Calls, free: tuple[Tape, Tape], made: float, lost: float) -> bool:
    mine, its = free[1].passages.get(key), [free[0].passages.get(one) for one in calls[key][1]]
    if mine is None or not all(its) or not any(t.is_floating_point() for _, t in mine.outputs):
        return False
    apart = farthest(mine.outputs, expected(calls[key], free[0])[1])
    ulps, narrow = map(max, zip(mine.bounds[1], *(one.bounds[1] for one in its if one), strict=True))
    return apart is not None and apart <= ulps * made + narrow + lost


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
