"""Both programs run, as they are and in float64, and are compared wherever both have the same tensor."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..compare.subject import REFUSALS
from .distances import bound, distance, rounding, roundings, roundoff, worse
from .match import Calls, Match, Model, Names, matched
from .side import ROOT, Given, Side, Values
from .tape import Key, Named, Tape, paired
from .wide import Wide


@dataclass(slots=True)
class Point:
    """A place where both programs have the same tensor: what a module gets, or what it returns.

    Attributes:
        match: the modules; for what a module gets, those that call it.
        before: the module that gets it, with its argument; empty for a result.
        site: the line of b that calls the module.
        apart: the distance of the two programs in float64.
        bound: how far rounding takes them apart there.
        errors: the distances of a and b, as they are, to float64.
        roundings: how many roundings of each number these are.
        distance: between a and b as they are.
    """

    match: Match
    before: str
    site: str
    apart: float
    bound: float
    errors: tuple[float, float]
    roundings: tuple[float, float]
    distance: float

    @property
    def another(self) -> bool:
        """Whether more than rounding differs."""
        return not self.apart <= self.bound

    @property
    def worse(self) -> str:
        """Which of the two rounds worse, or nothing."""
        return "" if self.another else worse(*self.roundings)


@dataclass
class Found:
    """What the runs have shown.

    Attributes:
        points: in the order in which b comes to them.
        errors: the distances of the outputs of a and b to float64; of both to that of a, where they are one function.
        distance: between the outputs.
        growth: of each module, the distance of its results on its own inputs.
        alone: modules of a, and of b, that stand for none of the other.
        states: of each module of b, what it holds that a does not.
        precision: of the reference.
        output_roundings: how many roundings of each number the errors of the outputs are.
    """

    calls: Calls
    points: list[Point]
    errors: tuple[float, float]
    distance: float
    growth: dict[str, float]
    alone: tuple[list[str], list[str]]
    states: dict[str, list[str]]
    precision: torch.dtype
    output_roundings: tuple[float, float]
    notes: list[str] = field(default_factory=list)


def measure(a: Side, b: Side, names: Names) -> Found:
    """Run both, free and with what a's modules got and returned.

    Raises:
        CompareError: one of them does not run, or they return something else.
    """
    sides, tapes = (a, b), (Tape(), Tape())
    modules = all(side.hookable for side in sides)
    outs = [
        side.run(side.copy(), tape, None if modules else ()) for side, tape in zip(sides, tapes, strict=True)
    ]
    check_alike(a, b, outs)
    calls: Calls = {ROOT: (Match("", ("",), ""), (ROOT,))}
    alone: tuple[list[str], list[str]] = [], []
    values: tuple[Values, Values] = {}, {}
    states: dict[str, list[str]] = {}
    if a.model is not None and b.model is not None and modules:
        models = Model(a.model, tapes[0].passages), Model(b.model, tapes[1].passages)
        calls = matched(*models, names)
        stand = {match for match, _ in calls.values()}
        alone = (
            sorted(set(models[0].calls) - {path for match in stand for path in match.a}),
            sorted(set(models[1].calls) - {match.b for match in stand}),
        )
        states = _shared(*models, stand, values)
    growth = dict(_grown(calls, *tapes))
    tapes[1].passages.clear()
    low, kept = Tape(), {key for _, keys in calls.values() for key in keys}

    def of_b(key: Key) -> tuple[Named, Named] | None:
        return expected(calls[key], tapes[0]) if key in calls else None

    def of_a(key: Key) -> tuple[Named, Named] | None:
        return (tapes[0].passages[key].inputs, tapes[0].passages[key].outputs) if key in kept else None

    paths = {key[0] for key in kept}, {key[0] for key in calls}
    if len(calls) > 1:
        b.run(b.copy(), low, paths[1], of_b)
    else:
        low.passages[ROOT] = b.whole(outs[1])
    for precision in (torch.float64, torch.float32):
        with contextlib.suppress(*([] if precision is torch.float32 else REFUSALS)):
            wide = _wide(sides, values, precision, paths, (of_a, of_b))
            break
    free = [
        side.run(side.wide(precision, held), Tape(), (), wide=Wide(precision))
        for side, held in zip(sides, values, strict=True)
    ] if len(calls) > 1 else [[t for _, t in tape.passages[ROOT].outputs] for tape in wide]
    for key, (match, keys) in calls.items():
        if len(keys) == 1 and key in low.passages:
            theirs, mine = tapes[0].passages[keys[0]].inputs, low.passages[key].inputs
            given = [name for name, _ in theirs]
            missing = [name for name in given if name not in dict(mine)] if len(given) > len(mine) else []
            states.setdefault(match.b, []).extend(f"gets no {name}, as a's does" for name in missing if not key[1])
    points = list(_points(calls, tapes[0], low, *wide, torch.finfo(precision).eps))
    reference = free[1] if any(point.another for point in points) else free[0]
    errors = between(outs[0], free[0]), between(outs[1], reference)
    units = [rounding(t, out.dtype) for side in outs for t, out in zip(free[0], side, strict=False)]
    unit = min((u for u in units if u), default=0.0)
    felt = roundings(errors[0], unit), roundings(errors[1], unit)
    return Found(calls, points, errors, between(outs[1], outs[0]), growth, alone, states, precision, felt)


def _wide(sides: tuple[Side, Side], values: tuple[Values, Values], precision: torch.dtype,
          paths: tuple[set[str], set[str]], given: tuple[Given, Given]) -> tuple[Tape, Tape]:  # fmt: skip
    """What both programs do in a wide dtype with a's tensors."""
    tapes = Tape(), Tape()
    for side, tape, held, listened, its in zip(sides, tapes, values, paths, given, strict=True):
        side.run(side.wide(precision, held), tape, listened, its, Wide(precision))
    return tapes


def check_alike(a: Side, b: Side, outs: list[list[Tensor]]) -> None:
    """Raise where the outputs cannot be compared."""
    told = [", ".join(f"{name_of(t.dtype)}{list(t.shape)}" for t in out) or "no tensors" for out in outs]
    pairs = paired(*([(str(n), t) for n, t in enumerate(out)] for out in outs))
    if not pairs:
        raise CompareError(
            "diff: the outputs have nothing in common\n"
            f"  a, {a.title}, returns {told[0]}\n  b, {b.title}, returns {told[1]}"
        )


def between(mine: list[Tensor], other: list[Tensor]) -> float:
    """The largest distance of tensors of two results."""
    pairs = paired([(str(n), t) for n, t in enumerate(mine)], [(str(n), t) for n, t in enumerate(other)])
    return max((distance(mine[int(n)], other[m]) for n, m in pairs.items()), default=0.0)


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
    if whole.shape[-1] != len(match.channels):
        return first.inputs, []
    return first.inputs, [("result", whole[..., match.channels.to(whole.device)])]


def _points(calls: Calls, a: Tape, b: Tape, wide_a: Tape, wide_b: Tape, eps: float) -> Iterator[Point]:
    found: list[tuple[int, Point]] = []
    for key, call in calls.items():
        low, wide, reference = b.passages.get(key), wide_b.passages.get(key), wide_a.passages.get(call[1][0])
        if low is None or wide is None or reference is None or any(one not in wide_a.passages for one in call[1]):
            continue
        mine, truths = expected(call, a), expected(call, wide_a)
        for place, (x_b, y_b) in enumerate(((low.inputs, wide.inputs), (low.outputs, wide.outputs))):
            if place == 0 and low.parent not in calls:
                continue
            ulps, coarse = map(max, zip(reference.bounds[place], wide.bounds[place], strict=True))
            seconds, others = dict(x_b), dict(y_b)
            for name, number in paired(x_b, mine[place]).items():
                first, second, other = mine[place][number][1], seconds[name], others.get(name)
                truth = truths[place][number][1] if number < len(truths[place]) else None
                if truth is None or other is None or other.numel() != truth.numel():
                    continue
                errors = distance(first, truth), distance(second, other, truth)
                unit = min(rounding(truth, tensor.dtype) for tensor in (first, second))
                point = Point(
                    match=calls[low.parent][0] if place == 0 and low.parent is not None else call[0],
                    before=f"{key[0]}({name})" if place == 0 else "",
                    site=low.site,
                    apart=distance(other, truth),
                    bound=bound(errors, (roundoff(first), roundoff(second)), ulps, max(coarse, eps)),
                    errors=errors,
                    roundings=(roundings(errors[0], unit), roundings(errors[1], unit)),
                    distance=distance(second, first, truth),
                )
                found.append((low.times[place], point))
    yield from (point for _, point in sorted(found, key=lambda one: one[0]))


def _grown(calls: Calls, a: Tape, b: Tape) -> Iterator[tuple[str, float]]:
    for key, call in calls.items():
        mine, its = dict(b.passages[key].outputs), expected(call, a)[1]
        pairs = paired(b.passages[key].outputs, its)
        if pairs:
            yield key[0], max(distance(mine[name], its[n][1]) for name, n in pairs.items())


def _shared(a: Model, b: Model, matches: set[Match], values: tuple[Values, Values]) -> dict[str, list[str]]:
    """What differs in what modules hold. Values that one program has rounded are given to both in float64."""
    found: dict[str, list[str]] = {}
    for match in matches:
        if len(match.a) > 1 or match.channels is not None:
            continue
        mine, its = a.weights(match.a[0]), b.weights(match.b)
        for name, x in mine.items():
            y = its.get(name)
            if y is None or x.numel() != y.numel():
                continue
            narrow = max((x.dtype, y.dtype), key=lambda dtype: torch.finfo(dtype).eps)
            first, second = (t.detach().cpu().to(narrow) for t in (x, y))
            if x.shape == y.shape and torch.equal(first, second):
                if x.dtype is narrow is not y.dtype:
                    values[0][match.a[0], name] = y
                if y.dtype is narrow is not x.dtype:
                    values[1][match.b, name] = x
            elif x.shape == y.shape or not torch.equal(first.mT, second):
                told = "is transposed" if x.ndim == 2 and torch.equal(first, second.mT) else (
                    f"differs by {distance(y, x):.1e} of its norm")  # fmt: skip
                found.setdefault(match.b, []).append(f"{name} {told}")
    return found
