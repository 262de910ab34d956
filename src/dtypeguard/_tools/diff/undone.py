"""Differences that something around them makes up for, and what rounding has changed before anything runs."""

import re

import torch
from torch import Tensor

from .distances import amplification, distance, roundoff
from .match import Calls, Model
from .points import Point, expected, farthest
from .side import Side
from .tape import Key, Tape, is_dense
from .wide import digest

_NUMBER = re.compile(r"\d+")


def amplification_of(side: Side, outputs: list[Tensor], wide: list[Tensor]) -> float:
    """What the whole program makes of one rounding."""
    floors = [max(roundoff(t), side.spacing / 2) for t in outputs]
    pairs = zip(outputs, wide, floors, strict=False)
    return max((amplification((distance(t, w), 0.0), (u, 0.0)) for t, w, u in pairs if u), default=1.0)


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


def undo(points: list[Point], calls: Calls, free: tuple[Tape, Tape], eps: float, tables: float) -> list[str]:
    """Mark what differs inside of a module whose results, on each program's own inputs, do not; the modules' names.

    A scale may stand in weights or behind them, the channels between two layers in any order, a mask hold any number
    that is low enough.
    """
    same: dict[Key, bool] = {}

    def agrees(key: Key) -> bool:
        if key not in same:
            mine, its = free[1].passages.get(key), [free[0].passages.get(one) for one in calls[key][1]]
            same[key] = False
            if mine is not None and mine.outputs and its and all(its):
                apart = farthest(mine.outputs, expected(calls[key], free[0])[1])
                ulps, narrow = map(max, zip(mine.bounds[1], *(one.bounds[1] for one in its if one), strict=True))
                same[key] = apart is not None and apart <= ulps * eps + narrow + tables
        return same[key]

    names: dict[str, None] = {}
    for point in points:
        key: Key | None = point.key
        while point.differs and key is not None:
            if key in calls and agrees(key):
                point.undone = True
                names[point.before or point.match.b] = None
            passage = free[1].passages.get(key)
            key = None if passage is None else passage.parent
    # Behind the first module that does differ nothing gives the same; so what is undone in one layer is in all.
    kinds, left = {_NUMBER.sub("*", name) for name in names}, [point for point in points if point.differs]
    alike = [point for point in left if _NUMBER.sub("*", point.before or point.match.b) in kinds]
    for point in alike if len(alike) < len(left) else ():
        point.undone = True
    return list(names)
