"""The gradients of two programs, and the module in whose backward they part."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._core.base.modules import inside, unwrapped
from ..._show.result import Row
from .distances import bound, counted, distance, roundoff, verdict_of, worse
from .match import Calls, Match
from .measure import Found, paths_of
from .points import Point
from .side import Side
from .tape import Key, Passage, Tape, paired
from .wide import Wide
from .words import number

BACKWARD = "(backward)"  # the place of a point
_NAMED = 4  # parameters


def apart_of(at: str, apart: float) -> str:
    """The distance at a place in the wide dtype; where a gradient ends in one of the two there is none."""
    return "no gradient" if at == BACKWARD and math.isinf(apart) else number(apart)


@dataclass(frozen=True, slots=True)
class Gradient(Row):
    """The gradient of one parameter, or of a tensor of the batch.

    Attributes:
        name: the name of the parameter in b, or of a tensor of the batch that requires a gradient, as "batch['x']".
        verdict: as that of a `DiffRow`.
        apart: the distance of the two programs' gradients in float64, in parts of the norm.
        bound: how much of that rounding explains.
        error_a: the distance of a's gradient to float64.
        error_b: that of b's.
        roundings: how many roundings of each number these errors are.
        only: the program that has a gradient there, "a" or "b", if the other one has none; else empty.
    """

    name: str
    verdict: str
    apart: float
    bound: float
    error_a: float
    error_b: float
    roundings: tuple[float, float]
    only: Literal["a", "b", ""] = ""

    @staticmethod
    def summary(rows: "Sequence[Gradient]") -> Iterator[str]:
        """What a report says of all."""
        wrong = [row for row in rows if row.verdict == "another function"]
        most = max(rows, key=lambda row: -1.0 if row.only else max(row.error_a, row.error_b))
        for has, none in ("ab", "ba"):
            if lost := [row.name for row in rows if row.only == has]:
                more = f" and {len(lost) - _NAMED} more" if lost[_NAMED:] else ""
                yield f"gradients: {none} has none of {', '.join(lost[:_NAMED])}{more}, and {has} has"
        if wrong := [row for row in wrong if not row.only]:
            worst = max(wrong, key=lambda row: row.apart)
            yield (
                f"gradients: {len(wrong)} of {len(rows)} parameters differ in float64, most {worst.name}, by "
                f"{worst.apart:.1e}"
            )
        if not most.only:
            yield f"gradients: the largest errors are those of {most.name}: a {most.error_a:.1e}, b {most.error_b:.1e}"


Grads = dict[str, Tensor]


def gradients(a: Side, b: Side, found: Found) -> tuple[tuple[Gradient, ...], Point | None, int]:
    """The gradients of parameters that have a partner, the point where they part, and how many have none."""
    calls, precision = found.calls, found.precision
    low, wide, tapes, ulps, narrow = [], [], (Tape(), Tape()), 1.0, 0.0
    for side, tape, held, own in zip((a, b), tapes, found.values, paths_of(calls), strict=True):
        program, made = side.copy(), Wide(precision, apart=False)
        side.run(program, Tape(), own, backward=True)
        low.append(_grads(side, program))
        program = side.wide(precision, held)
        try:
            side.run(program, tape, own, wide=made, backward=True)
        except Exception as error:
            raise CompareError(
                f"diff: {side.name}, this {side.title}, has no backward in {name_of(precision)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        wide.append(_grads(side, program))
        ulps, narrow = max(ulps, made.ulps[0]), max(narrow, made.narrow[0])
    eps, narrow = torch.finfo(precision).eps, narrow + found.tables
    pairs = {name: own for match in found.partners for name, own in _pairs(match, *low, *wide).items()}
    pairs |= {name: [both[side][name] for both in (low, wide) for side in (0, 1)] for name in b.leaves}
    largest = max((float(one.norm()) for own in pairs.values() for one in own[2:]), default=0.0)
    # What is zero but for rounding, as the gradient of a bias before a softmax, has no digits to compare.
    rows = [
        _row(name, own, ulps, eps, narrow) for name, own in pairs.items()
        if max(float(one.norm()) for one in own[2:]) > ulps * eps * largest
    ]  # fmt: skip
    return tuple(rows), _first(calls, tapes, rows, ulps * eps + narrow), len(low[1]) - len(pairs)


def _grads(side: Side, program: Any) -> Grads:
    """By the names of parameters and of what is in the batch; where the loss depends on none of it, they are zero."""
    named = program.named_parameters() if isinstance(program, nn.Module) else ()
    floats = [*((name, p) for name, p in named if p.is_floating_point() or p.is_complex()), *side.leaves.items()]
    return {unwrapped(name): torch.zeros_like(p) if p.grad is None else p.grad for name, p in floats}


def _pairs(match: Match, *grads: Grads) -> dict[str, list[Tensor]]:
    """Of each parameter of b: a's gradient and b's, then both in float64."""
    names = [name for name in grads[1] if name.rpartition(".")[0] == match.b]
    found = {}
    for name in names:
        own = name.rpartition(".")[2]
        sides = []
        for mine, its in ((grads[0], grads[1]), (grads[2], grads[3])):
            parts = [mine[at] for path in match.a if (at := inside(path, own)) in mine]
            if len(parts) != len(match.a) or name not in its:
                break
            whole = parts[0] if match.channels is None else torch.cat(parts, 0)[match.channels]
            if whole.shape != its[name].shape and whole.mT.shape == its[name].shape:
                whole = whole.mT
            if whole.shape != its[name].shape:
                break
            sides += [whole, its[name]]
        if len(sides) == 4:
            found[name] = sides
    return found


def _row(name: str, tensors: list[Tensor], ulps: float, eps: float, narrow: float) -> Gradient:
    first, second, truth, other = tensors
    errors = distance(first, truth), distance(second, other, truth)
    counts = counted(errors, truth, (first, second))
    apart, most = distance(other, truth), bound(errors, (roundoff(first), roundoff(second)), ulps, eps, narrow)
    only: Literal["a", "b", ""] = "b" if not truth.any() else "a" if not other.any() else ""
    return Gradient(name, verdict_of(not apart <= most, worse(*counts)), apart, most, *errors, counts, only)


def _first(calls: Calls, tapes: tuple[Tape, Tape], rows: list[Gradient], least: float) -> Point | None:
    """The innermost module whose result has the same gradient in both, and whose inputs or parameters have not."""
    wrong = {row.name.rpartition(".")[0]: row for row in rows if row.verdict == "another function"}
    if not wrong:
        return None
    limit = min(1.0, *(row.apart for row in wrong.values()))  # of a zero gradient any is infinitely far
    found: dict[Key, Point] = {}
    inside: dict[Key | None, float] = {}  # the distance of what the modules that a module calls have returned
    for key, (_, keys) in calls.items():
        returned = _gradient_distance(tapes[1].passages[key], tapes[0].passages[keys[0]], 1)
        parent = tapes[1].passages[key].parent
        inside[parent] = max(inside.get(parent, 0.0), returned or 0.0)
    for key, (match, keys) in calls.items():
        mine, its = tapes[1].passages[key], tapes[0].passages[keys[0]]
        inner, outer = (_gradient_distance(mine, its, place) for place in (0, 1))
        own = max(wrong[match.b].apart if match.b in wrong else 0.0, inside.get(key, 0.0))
        if outer is not None and outer <= min(max(least, limit * 1e-3), limit) and max(inner or 0.0, own) > limit / 2:
            found[key] = Point(
                match, key, BACKWARD, mine.site, max(inner or 0.0, own), least, (0.0, 0.0), (0.0, 0.0), 0.0
            )
    outside = {parent for key in found for parent in _modules_above(key, tapes[1].passages)}
    left = [key for key in found if key not in outside]
    last = max(left, key=lambda key: tapes[1].passages[key].times[1], default=None)
    return None if last is None else found[last]


def _modules_above(key: Key, passages: Mapping[Key, Passage]) -> Iterator[Key]:
    parent = passages[key].parent
    while parent is not None:
        yield parent
        parent = passages[parent].parent


def _gradient_distance(mine: Passage, its: Passage, place: int) -> float | None:
    """The distance of the gradients of what a call got, or returned; None where neither has any."""
    has, may = (
        [any(where == place for where, _ in kept) for kept in both]
        for both in ((mine.grads, its.grads), (mine.followed, its.followed))
    )
    if has[0] is not has[1]:
        return math.inf if all(may) or place else None  # else it was cut off before it came in
    named = [[(n, t) for n, t in (p.inputs, p.outputs)[place] if (place, n) in p.grads] for p in (mine, its)]
    pairs = paired(*named)
    found = [distance(mine.grads[place, n], its.grads[place, named[1][m][0]]) for n, m in pairs.items()]
    return max(found, default=None)
